// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"
)

const page = "../../docs/usb.md"

func TestDocs_OptionsAreThoseOfStructs(t *testing.T) {
	schematest.Document(t, page, map[string]schema.Described{"plugin options": schema.Of[Config]()})
}

func TestDocs_ConfigurationsAreRight(t *testing.T) {
	text, err := os.ReadFile(page)
	must.NoError(t, err)
	m := newMachine(t, ``)
	n := 0
	for _, block := range regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if !strings.HasPrefix(block[1], "plugin ") && !strings.HasPrefix(block[1], "device ") || strings.Contains(block[1],
			"constraint") {
			continue // a job
		}
		n++
		if _, err := m.check(block[1]); err != nil {
			t.Errorf("%v:\n%s", err, block[1])
		}
	}
	test.False(t, n < 3, test.Sprintf("%d configurations found", n))
}

func TestDocs_NamesAreThoseGiven(t *testing.T) {
	text, err := os.ReadFile(page)
	must.NoError(t, err)
	m := newMachine(t, "match_all = true\n"+zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	m.plug("0403:6001", "A1", "1-2")
	for _, g := range m.scan() {
		for name := range g.Attributes {
			test.StrContains(t, string(text), "`"+name+"`", test.Sprintf("attribute %s is not documented", name))
		}
	}
	for name := range m.reserve("10c4:ea60:0001").Envs {
		if name = strings.TrimPrefix(name, "USB_ZIGBEE"); !strings.Contains(string(text), "`"+name+"`") &&
			!strings.Contains(string(text), "`USB_ZIGBEE"+name+"`") {
			t.Errorf("variable %s is not documented", name)
		}
	}
	stats, err := m.Stats(t.Context(), []string{"10c4:ea60:0001"})
	m.must(err)
	for name := range stats["10c4:ea60:0001"].Stats.Attributes {
		test.StrContains(t, string(text), name, test.Sprintf("statistic %s is not documented", name))
	}
}

// What somebody searches the page for is what they see.
func TestDocs_TroublesQuoteRealMessages(t *testing.T) {
	text, err := os.ReadFile(page)
	must.NoError(t, err)
	_, troubles, _ := strings.Cut(string(text), "\n## Troubles\n")
	troubles, _, _ = strings.Cut(troubles, "\n## ")
	var sources strings.Builder
	for _, pattern := range []string{"*.go", "*/*.go", "../../internal/core/device/*.go"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			source, err := os.ReadFile(file)
			must.NoError(t, err)
			if !strings.HasSuffix(file, "_test.go") {
				sources.Write(source)
			}
		}
	}
	for _, ours := range []string{"no device is published", "no device was requested: a constraint of the job names " +
		"one that is unhealthy or missing",
		"no driver is bound to interface ", "its device nodes can't be made: ", "has files of others",
		"it is plugged in, as ",
		"no device nodes can be made for tasks", "a device was plugged in again", "devices have not been listed yet",
		"restart the agent",
		"is no simulation", "what is published is a simulation", "is not published: the kernel still lists it"} {
		must.StrContains(t, troubles, ours, must.Sprintf("%q is not in both the page and the plugin", ours))
		test.StrContains(t, sources.String(), ours,
			test.Sprintf("%q is not in both the page and the plugin", ours))
	}
	sections := regexp.MustCompile(`(?m)^###? (.*)$`).FindAllStringSubmatch(string(text), -1)
	for _, link := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(string(text), -1) {
		if !slices.ContainsFunc(sections, func(s []string) bool {
			return regexp.MustCompile(`[^a-z0-9-]`).ReplaceAllString(strings.ReplaceAll(strings.ToLower(s[1]), " ", "-"),
				"") == link[1]
		}) {
			t.Errorf("there is no section #%s", link[1])
		}
	}
}
