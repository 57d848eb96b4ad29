// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// nobody is the user without rights, on every distribution.
const nobody = 65534

// kept are the capabilities of an agent that may not be root: it and its plugins must still reach a checkout in root's
// home.
var kept = []uintptr{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_KILL}

// cgroupsReadOnly reports whether Nomad would refuse to start as root: if cgroups are mounted, it has to create some,
// unless it is not root (client/lib/cgroupslib: detect and Init).
func cgroupsReadOnly() bool {
	if os.Geteuid() != 0 {
		return false
	}
	for _, dir := range nomadCgroups() {
		if _, err := os.Stat(filepath.Dir(dir)); err != nil {
			continue
		}
		if errors.Is(unix.Access(filepath.Dir(dir), unix.W_OK), unix.EROFS) {
			return true
		}
	}
	return false
}

// Privileged reports whether an agent that this process starts on the host is root.
func Privileged() bool { return os.Geteuid() == 0 && !cgroupsReadOnly() }

// asNobody makes a command run as nobody, with those of the kept capabilities that this process has. They take effect
// only after the exec, so nobody may be unable to reach the program by its path, for example in root's home. So the
// file is opened here; the caller closes it after Start.
func asNobody(cmd *exec.Cmd) (binary *os.File, err error) {
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	have, err := permitted()
	if err != nil {
		return nil, err
	}
	for _, c := range kept {
		if have&(1<<c) != 0 {
			cmd.SysProcAttr.AmbientCaps = append(cmd.SysProcAttr.AmbientCaps, c)
		}
	}
	if binary, err = os.Open(cmd.Path); err != nil {
		return nil, err
	}
	cmd.Path = fmt.Sprintf("/proc/self/fd/%d", binary.Fd())
	cmd.Dir = "/"
	return binary, nil
}

// permitted returns the first 32 of this process's permitted capabilities: the kept ones are among them.
func permitted() (uint32, error) {
	var sets [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]); err != nil {
		return 0, fmt.Errorf("failed to read capabilities: %w", err)
	}
	return sets[0].Permitted, nil
}

// giveAway makes nobody the owner of a directory and everything in it.
func giveAway(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
}
