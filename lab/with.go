// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"fmt"
	"os"
)

// With is what a lab has besides the plugins. What is empty stays as it is in the running lab, and is none in a new
// one.
type With struct {
	USB     string // "sim": a simulated stick
	Dataset string // "zfs-fuse": a pool in a file
	Remote  string // "sim": an SSH server on this machine
	Nodes   int    // clients of the lab's server, this agent among them
}

// choose checks the options, and finds by the lab's directories what it has already. The lab keeps that until it is
// removed: volumes and tasks are there.
func (l *Lab) choose(with With) error {
	l.dataset, l.remote = exists(l.poolDir()), exists(l.hostDir())
	switch {
	case with.USB != "" && with.USB != "sim":
		return fmt.Errorf("-usb=%s: want sim (a simulated serial stick)", with.USB)
	case with.Dataset != "" && with.Dataset != "zfs-fuse":
		return fmt.Errorf("-dataset=%s: want zfs-fuse (a pool in a file)", with.Dataset)
	case with.Remote != "" && with.Remote != "sim":
		return fmt.Errorf("-remote=%s: want sim (this machine, by an SSH server)", with.Remote)
	case with.Nodes < 0 || with.Nodes > 9:
		return fmt.Errorf("-nodes=%d: want 1 to 9", with.Nodes)
	}
	l.dataset = l.dataset || with.Dataset == "zfs-fuse"
	l.remote = l.remote || with.Remote == "sim"
	l.nodes = max(with.Nodes, 1)
	return nil
}

// needsHost returns a reason for which the lab can't be in a container, empty if there is none.
func (l *Lab) needsHost() string {
	switch {
	case l.dataset:
		return "datasets need file systems to make and mount"
	case l.remote:
		return "the host needs an SSH server"
	case l.nodes > 1:
		return "several nodes need one network"
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
