// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
)

func TestFrame_HasADotPerTask(t *testing.T) {
	states := strings.Fields(strings.Repeat(api.AllocClientStatusRunning+" ", 60))
	broken := append([]string{api.AllocClientStatusFailed, api.AllocClientStatusPending}, states[2:]...)
	c := &compare{count: 60, sides: []*side{{driver: "raw_exec", states: broken}, {driver: "exec-lite", states: states}}}
	for _, width := range []int{80, 160} {
		frame := c.frame(width)
		test.Eq(t, 118, strings.Count(frame, "●"))
		test.Eq(t, 1, strings.Count(frame, "○"))
		test.Eq(t, 1, strings.Count(frame, "✗"))
		test.StrContains(t, frame, "58 of 60")
		for line := range strings.Lines(frame) {
			test.LessEq(t, width, utf8.RuneCountInString(strings.TrimRight(line, "\n")), test.Sprint(line))
		}
	}
}

func TestHelps_RecognizesTheHelperProcessesOfEachDriver(t *testing.T) {
	for args, want := range map[string]string{
		"/cache/nomad executor {}": "raw_exec", "/cache/nomad logmon": "raw_exec", "/cache/nomad agent -config x": "",
		"/plugins/nomad-driver-exec-lite": "exec-lite", "outrider-supervisor collect /state": "exec-lite",
		"/bin/sleep 86400": "",
	} {
		for _, driver := range []string{"raw_exec", "exec-lite"} {
			test.Eq(t, driver == want, helps(driver, args), test.Sprint(driver, ": ", args))
		}
	}
}
