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
	USB     string // "none", or "sim" for a simulated stick
	Dataset string // "none", or "zfs-fuse" for a pool in a file
	Remote  string // "none", or "sim" for an SSH server on this machine
	Nodes   int    // clients of the lab's server, this agent among them
}

// choose checks the options, and finds by the lab's directories what it has already. A lab keeps its pool, its host and
// its nodes until it is removed: volumes and tasks are there.
func (l *Lab) choose(with With) error {
	l.dataset, l.remote = exists(l.poolDir()), exists(l.hostDir())
	switch {
	case with.USB != "" && with.USB != "none" && with.USB != "sim":
		return fmt.Errorf("-usb=%s: want none (no USB devices) or sim (a simulated serial stick)", with.USB)
	case with.Dataset != "" && with.Dataset != "none" && with.Dataset != "zfs-fuse":
		return fmt.Errorf("-dataset=%s: want none (no datasets) or zfs-fuse (in a file)", with.Dataset)
	case with.Remote != "" && with.Remote != "none" && with.Remote != "sim":
		return fmt.Errorf("-remote=%s: want none (no host) or sim (this machine, by an SSH server)", with.Remote)
	case with.Dataset == "none" && l.dataset:
		return fmt.Errorf("the lab is up, and has datasets; to change that, and lose them:\n\n  %s lab:down lab:up", mage)
	case with.Remote == "none" && l.remote:
		return fmt.Errorf("the lab is up, and has a host; to change that, and end the tasks there:\n\n  %s lab:down lab:up",
			mage)
	case with.Nodes < 0 || with.Nodes > 9:
		return fmt.Errorf("-nodes=%d: want 1 to 9", with.Nodes)
	}
	l.dataset = l.dataset || with.Dataset == "zfs-fuse"
	l.remote = l.remote || with.Remote == "sim"
	l.nodes = max(with.Nodes, 1)
	return nil
}

// needsHost returns a reason for which the lab can't be in a container, empty if there is none, and the option of
// lab:up.
func (l *Lab) needsHost() (why, option string) {
	switch {
	case l.dataset:
		return "datasets need file systems to make and mount", "-dataset=zfs-fuse"
	case l.remote:
		return "the host needs an SSH server", "-remote=sim"
	case l.nodes > 1:
		return "several nodes need one network", fmt.Sprintf("-nodes=%d", l.nodes)
	}
	return "", ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
