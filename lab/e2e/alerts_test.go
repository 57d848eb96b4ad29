// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

var (
	metricName   = regexp.MustCompile(`\b(nomad|outrider)_\w+`)
	quotedMetric = regexp.MustCompile("`((?:nomad|outrider)_\\w+)`")
	sampleLine   = regexp.MustCompile(`(?m)^(\w+)(\{.*\})? \S+$`)
	expression   = regexp.MustCompile(`(?m)^ +expr: (>-\n)?((?:.*\n)+?) +(for|labels):`)
)

// TestAlerts_NameMetricsThatExist compares the metrics named in the example rules and on their page with those that an
// agent and the page's commands print.
func TestAlerts_NameMetricsThatExist(t *testing.T) {
	needMemoryCgroup(t)
	t.Parallel()
	rules, err := os.ReadFile("../../deploy/prometheus/outrider.rules.yml")
	must.NoError(t, err)
	var wanted []string
	for _, m := range expression.FindAllStringSubmatch(string(rules), -1) {
		wanted = append(wanted, metricName.FindAllString(m[2], -1)...)
	}
	must.Eq(t, strings.Count(string(rules), "- alert:"), len(expression.FindAll(rules, -1)))
	text, err := os.ReadFile("../../" + monitorPage)
	must.NoError(t, err)
	for _, m := range quotedMetric.FindAllSubmatch(text, -1) {
		wanted = append(wanted, string(m[1]))
	}
	wanted = slices.Compact(slices.Sorted(slices.Values(wanted)))
	t.Logf("%d metrics: %s", len(wanted), strings.Join(wanted, " "))

	page := readFences(t, monitorPage)
	block := func(with string) fence {
		i := slices.IndexFunc(page, func(f fence) bool { return strings.Contains(f.text, with) })
		must.NotEq(t, -1, i, must.Sprintf("no block of the page has %s", with))
		return page[i]
	}
	telemetry := regexp.MustCompile(`(?s)telemetry \{.*?\n}\n`).FindString(block("telemetry {").text)
	n := newNode(t, nodeOptions{usb: &usbOptions{more: zigbee}, config: telemetry})
	plug(t, simulation(n.dir))
	n.submit(t, job(t, sh("head -c 100000000 /dev/zero | tail -c 100000000 >/dev/null"), func(j *api.Job, _ *api.Task) {
		attempts, delay := 1, time.Second
		j.TaskGroups[0].RestartPolicy.Attempts, j.TaskGroups[0].RestartPolicy.Delay = &attempts, &delay
	}))
	commands := strings.ReplaceAll(block("outrider_driver_healthy").text, "/var/lib/prometheus/node-exporter", mkdir(t)) +
		"nomad operator api '/v1/metrics?format=prometheus'\n"
	env := append(os.Environ(), "NOMAD_ADDR="+n.Address(), "PATH="+filepath.Dir(nomadBinary)+":"+os.Getenv("PATH"))
	testsupport.Within(t, time.Minute, func() error {
		text, err := shell(t, n.dir, env, commands)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, text)
		}
		have := map[string]bool{}
		for _, m := range sampleLine.FindAllStringSubmatch(text, -1) {
			have[m[1]] = true
		}
		for _, name := range wanted {
			if !have[name] {
				return fmt.Errorf("neither the agent nor the commands of the page print %s", name)
			}
		}
		return nil
	})
}
