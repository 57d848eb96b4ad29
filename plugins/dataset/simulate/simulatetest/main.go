// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulatetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/outrider-dev/outrider/plugins/dataset/simulate"
)

// step says how far a process of Main's has come, also to the programs that tests start.
const step = "OUTRIDER_SIMULATE_TEST"

// Main is the TestMain of packages with pools of zfs-fuse, of which there can be only one in
// a mount namespace: it runs the tests in one of their own. Without root there are no pools.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main without its end, for a TestMain that has something to remove.
func Run(m *testing.M) int {
	if os.Geteuid() != 0 || os.Getenv(step) == "inside" {
		return m.Run()
	}
	if os.Getenv(step) == "enter" {
		os.Setenv(step, "inside")
		if err := simulate.Private(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), step+"=enter")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	return 2 // by a signal
}
