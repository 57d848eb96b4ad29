// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package cgroup puts the processes of a task into control groups. It limits what they use, reads their statistics and
// OOM kills, and kills all of them, including those that tried to escape (double fork, setsid).
//
// Nomad makes most of a task's groups before it calls the driver (client/lib/cgroupslib). This package uses them, and
// makes only the missing ones:
//
//	v2      Nomad makes nomad.slice/{share,reserve}.slice/<alloc>.<task>.scope; we replace it
//	        with a new scope of the same name if an earlier run of the task has used it
//	v1      Nomad makes /nomad/<alloc>.<task> for freezer, cpu and memory, and a cpuset group;
//	        we make /nomad/<alloc>.<task> for pids and cpuacct, and for blkio if the task has I/O limits
//	hybrid  as v1, and we make a cgroup2 directory without controllers, for
//	        CLONE_INTO_CGROUP, cgroup.kill and the list of a task's processes
//
// The package keeps no state in memory. A [Group] consists of absolute paths; it is saved with the task, and a later
// process can continue with it.
//
// Sources: cgroups(7), and Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the kernel.
package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Mode is the version of the kernel's cgroup interface that a Group uses.
type Mode string

// The modes of a Group.
const (
	V2   Mode = "v2"
	V1   Mode = "v1"   // including hybrid systems: v1 with an additional cgroup2 hierarchy
	None Mode = "none" // no usable cgroup: a Group of this mode does nothing and has no statistics
)

// ErrUnavailable is wrapped by the error of [Group.Create] if this process is not permitted to use the groups, or if
// groups that Nomad should have made are missing. Nomad runs a task even if it could not make the task's groups, so a
// driver may do the same, with a Group of mode None.
var ErrUnavailable = errors.New("cgroup is unavailable")

// Group describes the control groups of one task. It is a plain value: it can be copied, compared as JSON, and used by
// several processes. The zero value behaves like a Group of mode None.
type Group struct {
	Mode Mode `json:"mode"`

	// Path is the directory of the task's scope on v2, exactly as Nomad sent it. It is empty on v1.
	Path string `json:"path,omitempty"`

	// V1 maps each v1 controller to the task's directory. Controllers that are mounted together ("cpu,cpuacct") have the
	// same directory. The cpuset group may contain other tasks too, so it is never used to find the task's processes.
	V1 map[string]string `json:"v1,omitempty"`

	// Unified is the task's cgroup2 directory on a hybrid system.
	Unified string `json:"unified,omitempty"`

	// Controllers lists the controllers that the group has on v2. On v1 they are the keys of V1.
	Controllers []string `json:"controllers,omitempty"`

	// Owned lists the directories that Create makes and Remove removes. The directory in Unified comes first, because the
	// task's process starts there and then joins the v1 groups.
	Owned []string `json:"owned,omitempty"`

	// Leaf marks a group planned by [Leaf] for a supervisor. Create does not kill the processes in it, because one of them
	// may be the caller.
	Leaf bool `json:"leaf,omitempty"`

	// Home is the v2 group of the process that planned a Leaf. It is the only group outside the leaf into which an agent
	// without root can move itself, so [Group.Leave] moves such an agent there.
	Home string `json:"home,omitempty"`
}

// Has reports whether the limits of a controller can be set, and its statistics read. controller is "memory", "cpu",
// "cpuset", "pids" or [IO].
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

// dirs returns the directories of the group without duplicates. It omits the cpuset group, which may be shared with
// other tasks.
func (g Group) dirs() []string {
	var out []string
	switch g.Mode {
	case V2:
		return []string{g.Path}
	case V1:
		if g.Unified != "" {
			out = append(out, g.Unified) // first, because Empty finds any remaining process by reading one file there
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

// cgroup2 returns the group's directory in a cgroup2 hierarchy, or "" if it has none.
func (g Group) cgroup2() string {
	if g.Mode == V2 {
		return g.Path
	}
	return g.Unified
}

// nomadDirs returns the directories in dirs() that Nomad made.
func (g Group) nomadDirs() []string {
	return slices.DeleteFunc(g.dirs(), func(dir string) bool { return slices.Contains(g.Owned, dir) })
}

// IsMissing reports whether an error means that a cgroup or one of its interface files does not exist. For a file or
// directory that was opened before its cgroup was removed, the kernel returns ENODEV: when the file is read or written,
// or when a process is cloned into the directory.
func IsMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// children returns the names of the cgroups directly below dir. It reads dir only if dir has subdirectories, which most
// cgroups do not: the link count of a cgroup directory is 2 plus the number of its subdirectories.
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
