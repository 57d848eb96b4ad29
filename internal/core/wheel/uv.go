// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wheel

import (
	"os"
	"os/exec"
	"syscall"
)

// FindUV returns the path of uv from $UV or else from PATH. It returns "" if uv is missing, or if the user with
// this credential (nil: this process's user) cannot run uv.
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
