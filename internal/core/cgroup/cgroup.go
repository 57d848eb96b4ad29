// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package cgroup puts the processes of a task into control groups. It sets their limits, reads
// statistics and OOM kills, and kills whole process trees, including processes that tried to
// escape (double fork, setsid).
//
// It uses the groups that Nomad made for the task before calling the driver
// (client/lib/cgroupslib) and adds only the missing ones:
//
//	v2      nomad.slice/{share,reserve}.slice/<alloc>.<task>.scope is Nomad's; we use it,
//	        and replace it with a new one if an earlier run used it
//	v1      freezer, cpu, memory: /nomad/<alloc>.<task>, and a cpuset group, are Nomad's;
//	        pids and cpuacct: /nomad/<alloc>.<task> are ours, and so is blkio for a task with I/O limits
//	hybrid  as v1, plus our own cgroup2 directory without controllers, for
//	        CLONE_INTO_CGROUP, cgroup.kill and membership
//
// The package keeps no state in memory: a [Group] is a value that consists of absolute paths. It
// is saved with the task and used by later processes.
//
// Sources: cgroups(7), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of
// the kernel.
package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Mode is the version of the cgroup interface in use.
type Mode string

// The modes.
const (
	V2   Mode = "v2"
	V1   Mode = "v1"   // with or without an additional cgroup2 hierarchy (hybrid)
	None Mode = "none" // no usable cgroup: a Group of this mode does nothing and has no statistics
)

// ErrUnavailable is wrapped by the error of [Group.Create] if the groups that Nomad should have
// made are missing, or if this process may not use them. Nomad itself ignores a failure to make
// them, so a driver can continue with a Group of mode None.
var ErrUnavailable = errors.New("cgroup is unavailable")

// Group describes the control groups of one task. It is a value: it can be copied, compared by
// its JSON, and used by several processes. The zero value behaves like a Group of mode None.
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

	// Controllers lists the usable controllers on v2. On v1 they are the keys of V1.
	Controllers []string `json:"controllers,omitempty"`

	// Owned lists the directories that Create makes and Remove removes. Unified comes first: a
	// process joins it before any other.
	Owned []string `json:"owned,omitempty"`

	// Leaf marks a group planned by [Leaf]. The caller itself runs in it, so Create never kills
	// its processes.
	Leaf bool `json:"leaf,omitempty"`

	// Home is set for a Leaf on v2: the group of the process that planned it. An agent without
	// root can move back only to this group when it leaves its leaf.
	Home string `json:"home,omitempty"`
}

// Has reports whether the group can limit and measure with this controller:
// "memory", "cpu", "cpuset", "pids", [IO].
func (g Group) Has(controller string) bool {
	switch g.Mode {
	case V2:
		return slices.Contains(g.Controllers, controller)
	case V1:
		if controller == IO {
			controller = blkio
		}
		return g.V1[controller] != ""
	}
	return false
}

// dirs returns the directories that contain only processes of this group, without duplicates.
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

// cgroup2 returns the directory in the cgroup2 hierarchy, or "" without such a hierarchy.
func (g Group) cgroup2() string {
	if g.Mode == V2 {
		return g.Path
	}
	return g.Unified
}

// nomadDirs returns the directories in dirs that Nomad made.
func (g Group) nomadDirs() []string {
	return slices.DeleteFunc(g.dirs(), func(dir string) bool { return slices.Contains(g.Owned, dir) })
}

// IsMissing reports whether an error means that a cgroup or one of its interface files does not exist.
// ENODEV is returned by a file that was opened before its group was removed, and by a clone into such a group.
func IsMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// children returns the sub-cgroups of a cgroup, or none if it cannot be read. The link count of a directory in a cgroup
// file system is 2 plus its subdirectories, so most directories need not be read.
func children(dir string) []string {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil || st.Nlink == 2 {
		return nil
	}
	entries, _ := os.ReadDir(dir)
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
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
