// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestMain_HasTheCommandsAndRolesOfThePlugin(t *testing.T) {
	exe, err := os.Executable()
	must.NoError(t, err)
	for args, want := range map[string]string{
		"say a b": "said [a b]\n",
		"help":    "say        say it back\n",
		"role":    "a role's work\n",
	} {
		cmd := exec.Command(exe, strings.Fields(args)...)
		cmd.Env = append(os.Environ(), binaryVar+"=1")
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s: got %q", args, out))
		test.StrContains(t, string(out), want, test.Sprintf("%s: got %q", args, out))
	}
}
