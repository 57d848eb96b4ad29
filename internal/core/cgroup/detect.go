// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Support describes how this process can use cgroups on this machine.
type Support struct {
	Mode Mode
	Root string // "/sys/fs/cgroup"

	// Controllers lists the controllers that tasks can use: a subset of memory, cpu, cpuset, pids and, on v2, io.
	Controllers []string

	// Mounts maps each controller to its writable v1 hierarchy. Symbolic links are resolved, so controllers that are
	// mounted together have the same directory.
	Mounts map[string]string

	// Unified is the writable cgroup2 hierarchy on a hybrid system, empty if there is none.
	Unified string

	// Own is the caller's own v2 group.
	Own string

	// Missing describes in one sentence the features that do not work here, and why. It is empty if everything works.
	Missing string
}

const defaultRoot = "/sys/fs/cgroup"

// wanted lists the controllers that limit or measure a task.
var wanted = []string{"memory", "cpu", "cpuset", "pids"}

// Detect inspects the cgroup file systems below root ("" means /sys/fs/cgroup) without changing them. It costs about
// twenty system calls on v2 and a hundred on v1: call it for a fingerprint, and reuse the result when tasks start.
func Detect(root string) Support {
	if root == "" {
		root = defaultRoot
	}
	self, _ := os.ReadFile("/proc/self/cgroup")
	return detect(filepath.Clean(root), self, unix.Geteuid())
}

// detect implements Detect. self is the content of /proc/self/cgroup, and euid is the effective user id.
func detect(root string, self []byte, euid int) Support {
	none := func(format string, args ...any) Support {
		return Support{Mode: None, Root: root, Missing: fmt.Sprintf(format, args...)}
	}
	switch {
	case exists(filepath.Join(root, "cgroup.controllers")):
		if err := unix.Access(root, unix.W_OK); err == unix.EROFS {
			return none("cgroup v2 cannot be used: %s is mounted read-only", root)
		}
		return detectV2(root, self, euid, none)
	case len(hierarchies(root)) > 0:
		return detectV1(root, euid, none)
	case exists(root):
		return none("cgroups cannot be used: no cgroup file system is mounted at %s", root)
	}
	return none("cgroups cannot be used: %s does not exist", root)
}

func detectV2(root string, self []byte, euid int, none func(string, ...any) Support) Support {
	s := Support{Mode: V2, Root: root, Own: filepath.Join(root, ownV2(self))}
	slice := filepath.Join(root, s.parent(""))
	switch {
	case exists(slice):
		if !writable(slice) {
			return none("cgroup v2 cannot be used: %s is not writable for user id %d; run the agent as root, or chown the "+
				"directory to that user", slice, euid)
		}
		// To start a process in a group below slice, we need write access to cgroup.procs of the nearest common ancestor of
		// that group and our own (cgroup-v2.rst, delegation).
		procs := filepath.Join(root, commonParent(ownV2(self), s.parent("")), "cgroup.procs")
		if !writable(procs) {
			return none("cgroup v2 cannot be used: %s is not writable for user id %d, so no process can be started in %s; "+
				"run the agent as root, or inside that slice", procs, euid, slice)
		}
	case !writable(root):
		return none("cgroup v2 cannot be used: %s is not writable for user id %d and has no %s; run the agent as root",
			root, euid, s.parent(""))
	}

	// A task can use the controllers that Nomad's slice delegates. Before Nomad has made the slice, assume that it will
	// delegate all controllers of the root. If the slice has the mode bit in the constant ours, we made it for a
	// supervisor, and it delegates no controllers.
	available, where := words(filepath.Join(root, "cgroup.controllers")), root
	var st unix.Stat_t
	if unix.Stat(slice, &st) == nil && st.Mode&ours == 0 {
		available, where = words(filepath.Join(slice, "cgroup.subtree_control")), slice
	}
	s.addControllers(func(c string) bool { return slices.Contains(available, c) }, where)
	if slices.Contains(available, IO) {
		s.Controllers = append(s.Controllers, IO) // separately, since Missing never reports this optional controller
	}
	return s
}

func detectV1(root string, euid int, none func(string, ...any) Support) Support {
	s := Support{Mode: V1, Root: root, Mounts: make(map[string]string)}
	readOnly := false
	for name, dir := range hierarchies(root) {
		switch err := unix.Access(dir, unix.W_OK); {
		case err == unix.EROFS:
			readOnly = true
		case err == nil && name == "unified":
			s.Unified = dir
		case err == nil:
			s.Mounts[name] = dir
		}
	}
	switch {
	case euid != 0: // Nomad itself uses v1 only as root
		return none("cgroup v1 can be used only by root, and the agent runs as user id %d", euid)
	case len(s.Mounts) == 0 && readOnly:
		return none("cgroup v1 cannot be used: the hierarchies in %s are mounted read-only", root)
	}
	s.addControllers(func(c string) bool { return s.Mounts[c] != "" }, root)
	if s.Mounts["freezer"] == "" {
		s.Missing = strings.TrimPrefix(s.Missing+"; no freezer hierarchy is writable in "+root+", so Nomad itself cannot "+
			"kill the processes of a task", "; ")
	}
	return s
}

// addControllers sets Controllers to the wanted controllers that are available, and lists the others in Missing.
func (s *Support) addControllers(has func(string) bool, where string) {
	var missing []string
	for _, c := range wanted {
		if has(c) {
			s.Controllers = append(s.Controllers, c)
		} else {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		s.Missing = fmt.Sprintf("no limits or statistics for %s: these cgroup %s controllers are not available in %s",
			strings.Join(missing, ", "), s.Mode, where)
	}
}

// hierarchies maps the names of the v1 hierarchies that we use, and "unified", to their directories. It omits a
// directory without cgroup.procs, because no hierarchy is mounted there.
func hierarchies(root string) map[string]string {
	out := make(map[string]string)
	for _, name := range append(slices.Clone(v1Controllers), "unified") {
		dir, err := filepath.EvalSymlinks(filepath.Join(root, name))
		if err == nil && exists(filepath.Join(dir, "cgroup.procs")) {
			out[name] = dir
		}
	}
	return out
}

// ownV2 returns the path of a process's cgroup2 group. The parameter self is the content of /proc/PID/cgroup, where the
// path is in the line "0::<path>".
func ownV2(self []byte) string {
	for line := range bytes.Lines(self) {
		if path, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("0::")); ok {
			return string(path)
		}
	}
	return "/"
}

// commonParent returns the deepest common ancestor of two groups, relative to the root.
func commonParent(a, b string) string {
	x, y := strings.Split(strings.Trim(a, "/"), "/"), strings.Split(strings.Trim(b, "/"), "/")
	n := 0
	for n < len(x) && n < len(y) && x[n] == y[n] {
		n++
	}
	return "/" + strings.Join(x[:n], "/")
}

// words returns the fields of an interface file, or nil if the file cannot be read.
func words(path string) []string {
	b, _ := readFile(path)
	return strings.Fields(string(b))
}
