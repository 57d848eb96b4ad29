// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package cgroup puts the processes of a task into control groups and asks the
// kernel about them: limits, statistics, OOM kills, and killing a whole tree,
// even if its processes tried to escape (double fork, setsid).
//
// It works with what Nomad made for the task before it called the driver
// (client/lib/cgroupslib) and adds only what is missing:
//
//	v2      nomad.slice/{share,reserve}.slice/<alloc>.<task>.scope is Nomad's; we use it,
//	        and replace it with a new one if an earlier run was in it
//	v1      freezer, cpu, memory: /nomad/<alloc>.<task>, and a cpuset group, are Nomad's;
//	        pids and cpuacct: /nomad/<alloc>.<task> are ours
//	hybrid  as v1, and a cgroup2 directory of ours without controllers, for
//	        CLONE_INTO_CGROUP, cgroup.kill and membership
//
// Nothing in this package keeps state in memory: a [Group] is a value made of
// absolute paths, which is saved with the task and used by later processes.
//
// Sources: cgroups(7), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of
// the kernel.
package cgroup

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Mode is the version of the cgroup interface in use.
type Mode string

// The modes.
const (
	V2   Mode = "v2"
	V1   Mode = "v1"   // with or without a cgroup2 hierarchy beside it (hybrid)
	None Mode = "none" // no usable cgroup: a Group of this mode does nothing and has no statistics
)

// ErrUnavailable is wrapped by the error of [Group.Create] when the groups that
// Nomad should have made are not there, or may not be used by this process.
// Nomad itself ignores that it could not make them, so a driver can go on
// without: with a Group of mode None.
var ErrUnavailable = errors.New("cgroup is unavailable")

// Group is the control groups of one task. It is a value: copy it, compare its
// JSON, use it from several processes. The zero value is of no mode and behaves
// as one of mode None.
type Group struct {
	Mode Mode `json:"mode"`

	// Path is the group on v2: Nomad's scope for the task, verbatim.
	Path string `json:"path,omitempty"`

	// V1 are the groups on v1, by controller. Controllers that are mounted
	// together ("cpu,cpuacct") share one directory. The cpuset group may be
	// shared with other tasks, so membership is never read from it.
	V1 map[string]string `json:"v1,omitempty"`

	// Unified is the cgroup2 directory on a hybrid system.
	Unified string `json:"unified,omitempty"`

	// Controllers are those that can be used on v2; on v1 the keys of V1.
	Controllers []string `json:"controllers,omitempty"`

	// Owned are the directories that Create makes and Remove removes, Unified
	// first: a process is in it before it is in any other.
	Owned []string `json:"owned,omitempty"`

	// Leaf marks a group planned by [Leaf]: the caller's own home, so that Create
	// never kills what is in it.
	Leaf bool `json:"leaf,omitempty"`

	// Home is, of a Leaf on v2, the group of the process that planned it. An agent
	// without root may go back there, and nowhere else, when it leaves its leaf.
	Home string `json:"home,omitempty"`
}

// Has reports whether the group can limit and measure with this controller:
// "memory", "cpu", "cpuset", "pids".
func (g Group) Has(controller string) bool {
	switch g.Mode {
	case V2:
		return slices.Contains(g.Controllers, controller)
	case V1:
		return g.V1[controller] != ""
	}
	return false
}

// dirs are the directories that hold the processes of this group alone, each once.
func (g Group) dirs() []string {
	var out []string
	switch g.Mode {
	case V2:
		return []string{g.Path}
	case V1:
		if g.Unified != "" {
			out = append(out, g.Unified) // first: it is the cheapest to read
		}
		for _, controller := range v1Controllers {
			dir := g.V1[controller]
			if dir != "" && controller != "cpuset" && !slices.Contains(out, dir) {
				out = append(out, dir)
			}
		}
	}
	return out
}

// cgroup2 is the directory in the cgroup2 hierarchy, empty if there is none.
func (g Group) cgroup2() string {
	if g.Mode == V2 {
		return g.Path
	}
	return g.Unified
}

// nomadDirs are the directories of this group alone that Nomad made before us.
func (g Group) nomadDirs() []string {
	return slices.DeleteFunc(g.dirs(), func(dir string) bool { return slices.Contains(g.Owned, dir) })
}

// IsMissing reports whether an error says that a cgroup, or the interface file of one, is not there.
// ENODEV is what a file gives that was opened before its group went, and a clone into such a group.
func IsMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// children returns the sub-cgroups of a cgroup. The link count of a directory in
// a cgroup file system is 2 plus its sub-directories, which saves reading most.
func children(dir string) []string {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil || st.Nlink == 2 {
		return nil
	}
	return readDirs(dir)
}

// tree returns dir and every cgroup below it, parents first.
func tree(dir string) []string {
	out := []string{dir}
	for i := 0; i < len(out); i++ {
		for _, name := range children(out[i]) {
			out = append(out, filepath.Join(out[i], name))
		}
	}
	return out
}
