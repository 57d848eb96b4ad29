// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wheel

import (
	"os/exec"
	"syscall"
)

// FindUV returns the path of uv. It returns "" if uv is not in PATH, or if the user with this credential (nil: this
// process's user) cannot run uv.
func FindUV(as *syscall.Credential) string {
	uv, err := exec.LookPath("uv")
	if err != nil {
		return ""
	}
	cmd := exec.Command(uv, "--version")
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: as}
	if cmd.Run() != nil {
		return ""
	}
	return uv
}
