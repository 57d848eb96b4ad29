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

	"github.com/outrider-dev/outrider/internal/core/plugin"
)

// The page must quote the exact messages, because users search for them.
func TestDocs_TroubleshootingQuotesRealMessages(t *testing.T) {
	text, err := os.ReadFile("../../docs/plugins/usb.md")
	must.NoError(t, err)
	_, troubles, _ := strings.Cut(string(text), "\n## Troubleshooting\n")
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
	for _, ours := range []string{"no device is published", "no device was requested: a constraint in the job names " +
		"a device that is unhealthy or missing",
		"no driver is bound to interface ", "its device nodes can't be made: ", "contains other files",
		"its id is now ",
		"no device nodes can be made for tasks", "a device was plugged in again", "devices have not been listed yet",
		"restart the agent",
		"is not a simulation", "the published devices are a simulation", "is not published: the kernel still lists it"} {
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
			t.Errorf("the page has no section #%s", link[1])
		}
	}
}

func TestPlugin_ModuleAndBinaryNamesAgree(t *testing.T) {
	const name = "nomad-device-usb"
	module, err := os.ReadFile("go.mod")
	must.NoError(t, err)
	must.StrHasPrefix(t, "module github.com/outrider-dev/outrider/plugins/"+usb.Name+"\n", string(module),
		must.Sprintf("plugin %q is in a file %q and a module %.60q", usb.Name, name, module))
	test.Eq(t, name, "nomad-device-"+usb.Name,
		test.Sprintf("plugin %q is in a file %q and a module %.60q", usb.Name, name, module))
	replaced := regexp.MustCompile(`(?m)=>.*$`).FindAllString(string(module), -1)
	must.SliceLen(t, 1, replaced, must.Sprint("replaced modules"))
	test.StrContains(t, replaced[0], "../../internal/core", test.Sprint("replaced modules"))
	test.False(t, regexp.MustCompile(`hashicorp/nomad v0\.`).Match(module),
		test.Sprint("it is built against an old Nomad"))
	v := plugin.Version()
	must.NotEq(t, "0.1.0", v, must.Sprintf("version %q is a constant", v))
	test.NotEq(t, "", v, test.Sprintf("version %q is a constant", v))
	page, err := os.ReadFile("../../docs/plugins/usb.md")
	must.NoError(t, err, must.Sprint("it is not documented"))
	test.StrContains(t, string(page), name, test.Sprint("it is not documented"))
}
