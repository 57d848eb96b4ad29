// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestSupervisor_RefusesToRunByHand(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "outrider-supervisor")
	out, err := exec.Command("go", "build", "-o", exe, ".").CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	for _, arg := range []string{"", "version", "--help"} {
		cmd := exec.Command(exe)
		if arg != "" {
			cmd.Args = append(cmd.Args, arg)
		}
		cmd.Args[0] = "outrider-supervisor" // the same argv[0] as if a plugin had started it
		out, _ := cmd.CombinedOutput()
		test.Eq(t, 2, cmd.ProcessState.ExitCode(), test.Sprint(arg))
		test.StrContains(t, string(out), "it is not run by hand", test.Sprint(arg))
	}
}
