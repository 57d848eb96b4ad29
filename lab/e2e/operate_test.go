// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/rootfs"
)

const monitorPage = "docs/guides/monitor.md"

// nodePages are the pages for a node's operator, in order: the commands of a page need the effects of earlier pages.
var nodePages = []string{"docs/start/node.md", "docs/guides/rollout.md", monitorPage, "docs/guides/troubleshoot.md"}

// TestNodePages_CommandsWork runs the commands of nodePages on an operator's nodes, each a bare Debian with Nomad. The
// incidents cause the faults that the commands diagnose.
func TestNodePages_CommandsWork(t *testing.T) {
	testsupport.Long(t, "builds two releases and a bare Debian, and causes each fault of the pages")
	t.Parallel()
	nodes := map[string][]fence{}
	used := map[string]bool{}
	for _, page := range nodePages {
		for _, f := range readFences(t, page) {
			nodes[f.node] = append(nodes[f.node], f)
			for _, name := range f.after {
				used[name] = true
			}
		}
	}
	test.Eq(t, slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(incidents)), test.Sprint("the pages' incidents"))
	must.MapNotContainsKey(t, nodes, "", must.Sprint("a block of these pages does not name its node"))
	if err := rootfs.Missing(); err != nil {
		t.Skip(err)
	}
	for name, blocks := range nodes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := operatorsNode(t)
			for _, f := range blocks {
				for _, name := range f.after {
					out, err := r.Run(t.Context(), eventually+incidents[name])
					t.Logf("%s:\n%s", name, out)
					must.NoError(t, err, must.Sprint(name))
				}
				runFencesBy(t, []fence{f}, func(commands string) (string, error) { return r.Run(t.Context(), commands) })
			}
		})
	}
}

// operatorsNode returns a bare Debian with Nomad, with a separate disk for allocations. Root's home has the files that
// an operator downloads.
func operatorsNode(t *testing.T) *root {
	t.Helper()
	r := newRoot(t)
	t.Cleanup(func() {
		// before the root is closed, thaw the disk: a process that waits for a frozen disk can't be killed
		_, err := r.Run(context.Background(), "fsfreeze -u /opt/nomad/data/alloc 2>/dev/null || true")
		test.NoError(t, err)
	})
	rel, err := getReleases()
	must.NoError(t, err)
	for _, version := range []string{older, newer} {
		for _, pattern := range []string{"*.zip", "*.deb", "*.rpm"} {
			r.put(".", rel.file(t, version, pattern))
		}
	}
	r.put(".", rel.file(t, older, "SHA256SUMS"), usbStick)
	r.put(".", rel.others...)
	disk := filepath.Join(r.Dir, "srv", "disk")
	must.NoError(t, os.WriteFile(disk, nil, 0o600))
	must.NoError(t, os.Truncate(disk, 8<<30))
	out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", disk).CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	r.sh(prepareNode)
	return r
}

var (
	metricName   = regexp.MustCompile(`\b(nomad|outrider)_\w+`)
	quotedMetric = regexp.MustCompile("`((?:nomad|outrider)_\\w+)`")
	sampleLine   = regexp.MustCompile(`(?m)^(\w+)(\{.*\})? \S+$`)
	expression   = regexp.MustCompile(`(?m)^ +expr: (>-\n)?((?:.*\n)+?) +(for|labels):`)
)

// TestAlerts_NameMetricsThatExist checks that an agent or the commands of the monitoring page print each metric that
// the example rules or the page name.
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

const datasetPage = "docs/plugins/dataset.md"

var volumeFile = regexp.MustCompile(`^# (\S+\.volume\.hcl)\n`)

// TestDatasetPage_CommandsWork runs the page's commands, which also make the ZFS pool, on an operator's node: a bare
// Debian with Nomad.
func TestDatasetPage_CommandsWork(t *testing.T) {
	testsupport.Long(t, "builds a bare Debian, and Nomad is slow to create volumes")
	page := readFences(t, datasetPage)
	r := newRoot(t)
	r.put(".", dataset, execLite)
	files := jobFiles(page)
	for _, f := range page {
		if m := volumeFile.FindStringSubmatch(f.text); f.lang == "hcl" && m != nil {
			files[m[1]] = f.text
		}
	}
	for name, text := range files {
		must.NoError(t, os.WriteFile(filepath.Join(r.Dir, "root", name), []byte(text), 0o600))
	}
	r.sh("systemctl enable --now zfs-fuse; systemctl start nomad; install -D -m 755 nomad-driver-exec-lite " +
		"/opt/nomad/data/plugins/nomad-driver-exec-lite; ./nomad-driver-exec-lite config " +
		">/etc/nomad.d/nomad-driver-exec-lite.hcl")
	runFencesBy(t, page, func(commands string) (string, error) { return r.Run(t.Context(), commands) })
	r.sh("for job in *.nomad.hcl; do nomad job validate $job; done")
}
