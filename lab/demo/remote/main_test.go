// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os/exec"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
)

func TestDemo_EndsWithinAMinute(t *testing.T) {
	if !agent.Privileged() {
		t.Skip("only root simulates a host")
	}
	if _, err := exec.LookPath("/usr/sbin/sshd"); err != nil {
		t.Skip(err)
	}
	root, err := build.Root(".")
	must.NoError(t, err)
	_, err = build.Builder{Root: root}.All(t.Context(), "remote") // compiling may take a minute itself
	must.NoError(t, err)
	start := time.Now()
	must.NoError(t, play().Run(t.Context()))
	test.Less(t, time.Minute, time.Since(start))
}
