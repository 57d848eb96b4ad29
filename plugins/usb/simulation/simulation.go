// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package simulation recognizes a directory of simulated sticks, which replaces / in tests and demonstrations. The
// simulator, internal/core/testsupport/usbsim, is not part of the plugin.
package simulation

import (
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// stateDir has a file for each port with a stick.
const stateDir = ".simulate"

// Is reports whether a tree is a simulation in which a stick was plugged in at least once.
func Is(tree fs.FS) bool {
	info, err := fs.Lstat(tree, stateDir)
	return err == nil && info.IsDir()
}

// Holds reports whether a pseudo-terminal ("/dev/pts/7") belongs to a stick that is plugged in below dir now. The
// kernel reuses the numbers of closed terminals, so the terminal could also be a user's session.
func Holds(dir, terminal string) bool {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false
	}
	defer root.Close()

	ports, _ := fs.Glob(root.FS(), path.Join(stateDir, "*-*"))
	return slices.ContainsFunc(ports, func(name string) bool { return portHolds(root, name, terminal) })
}

// portHolds reports whether the file of one port lists the terminal, and is locked by a stick's process. The lock is an
// open file description lock for writing: a process that can only read the file can't get one.
func portHolds(root *os.Root, name, terminal string) bool {
	f, err := root.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()

	lock := unix.Flock_t{Type: unix.F_RDLCK}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock)
	if err != nil || lock.Type != unix.F_WRLCK {
		return false // the stick's process has exited
	}
	text, err := io.ReadAll(f)
	return err == nil && slices.Contains(strings.Fields(string(text)), terminal)
}
