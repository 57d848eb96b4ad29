// Package uv finds uv, which tests and benchmarks of the python driver build environments with, where it is.
package uv

import (
	"os"
	"os/exec"
	"syscall"
)

// Find returns a uv that as can run (nil is this process's user), "" where there is none: that of $UV, or else that of
// the PATH.
func Find(as *syscall.Credential) string {
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
