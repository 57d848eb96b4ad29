// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wheel

import (
	"os"
	"os/exec"
	"syscall"
)

// FindUV returns a uv that as can run (nil is this process's user), that of $UV or else of the PATH, or "".
func FindUV(as *syscall.Credential) string {
	uv := os.Getenv("UV")
	if uv == "" {
		uv, _ = exec.LookPath("uv")
	}
	if uv == "" {
		return ""
	}
	cmd := exec.Command(uv, "--version")
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: as}
	if cmd.Run() != nil {
		return ""
	}
	return uv
}
