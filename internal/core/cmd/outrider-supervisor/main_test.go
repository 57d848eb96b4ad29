// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
)

func TestSupervisor_AnswersAPerson(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "outrider-supervisor")
	out, err := exec.Command("go", "build", "-o", exe, ".").CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	program, err := os.ReadFile(exe)
	must.NoError(t, err)
	for arg, want := range map[string]struct {
		code int
		text string
	}{
		"version":   {0, "build " + supervisor.BuildOf(program)},
		"--version": {0, "build " + supervisor.BuildOf(program)},
		"--help":    {0, "it is not\nrun by hand"},
		"help":      {0, "print which build it is"},
	} {
		cmd := exec.Command(exe, arg)
		cmd.Args[0] = "outrider-supervisor" // as found on PATH, which is also the name by which a plugin starts it
		out, _ := cmd.CombinedOutput()
		test.Eq(t, want.code, cmd.ProcessState.ExitCode(), test.Sprint(arg))
		test.StrContains(t, string(out), want.text, test.Sprint(arg))
	}
}
