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

// Support is what this process can do with cgroups on this machine.
type Support struct {
	Mode Mode
	Root string // "/sys/fs/cgroup"

	// Controllers that can be used for tasks, of memory, cpu, cpuset and pids.
	Controllers []string

	// Mounts are the writable v1 hierarchies by controller, symbolic links
	// resolved, so that controllers mounted together have the same directory.
	Mounts map[string]string

	// Unified is a writable cgroup2 hierarchy beside v1, empty if there is none.
	Unified string

	// Own is the group on v2 that the caller is in.
	Own string

	// Missing is one sentence on what does not work here, and why; empty if
	// everything works.
	Missing string
}

const defaultRoot = "/sys/fs/cgroup"

// wanted are the controllers that limit a task or measure it.
var wanted = []string{"memory", "cpu", "cpuset", "pids"}

// Detect looks at the cgroup file systems below root, "" for /sys/fs/cgroup. It
// creates nothing. It costs about twenty system calls: call it for a
// fingerprint, and keep the result for the starts of tasks.
func Detect(root string) Support {
	if root == "" {
		root = defaultRoot
	}
	self, _ := os.ReadFile("/proc/self/cgroup")
	return detect(filepath.Clean(root), self, unix.Geteuid())
}

// detect is Detect with what it would ask the kernel about the process itself:
// the content of /proc/self/cgroup, and the effective user id.
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
			return none("cgroup v2 cannot be used: %s is not writable for user id %d; run the agent as root, or give it that "+
				"directory", slice, euid)
		}
		// starting a process in another cgroup needs cgroup.procs of the first
		// cgroup that is above both (cgroup-v2.rst, delegation)
		procs := filepath.Join(root, commonParent(ownV2(self), s.parent("")), "cgroup.procs")
		if !writable(procs) {
			return none("cgroup v2 cannot be used: %s is not writable for user id %d, so no process can be started in %s; "+
				"run the agent as root, or inside of that slice", procs, euid, slice)
		}
	case !writable(root):
		return none("cgroup v2 cannot be used: %s is not writable for user id %d and has no %s; run the agent as root",
			root, euid, s.parent(""))
	}

	// a task can have the controllers that its parent delegates, or those of the root
	// before Nomad has made its slice: one of ours, for a supervisor, delegates none
	available, where := words(filepath.Join(root, "cgroup.controllers")), root
	var st unix.Stat_t
	if unix.Stat(slice, &st) == nil && st.Mode&ours == 0 {
		available, where = words(filepath.Join(slice, "cgroup.subtree_control")), slice
	}
	s.addControllers(func(c string) bool { return slices.Contains(available, c) }, where)
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
	case euid != 0: // Nomad also uses v1 as root only
		return none("cgroup v1 can be used by root only, and this is user id %d", euid)
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

// addControllers fills Controllers, and Missing for those that are not there.
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
		s.Missing = fmt.Sprintf("no limits or statistics for %s: not among the cgroup %s controllers that %s offers",
			strings.Join(missing, ", "), s.Mode, where)
	}
}

// hierarchies returns the v1 hierarchies that we use, and "unified", which are
// mounted below root. A plain directory has no cgroup.procs.
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

// ownV2 is the process's own group in the cgroup2 hierarchy: the line "0::<path>".
func ownV2(self []byte) string {
	for line := range bytes.Lines(self) {
		if path, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("0::")); ok {
			return string(path)
		}
	}
	return "/"
}

// commonParent is the deepest group above both, relative to the root.
func commonParent(a, b string) string {
	x, y := strings.Split(strings.Trim(a, "/"), "/"), strings.Split(strings.Trim(b, "/"), "/")
	n := 0
	for n < len(x) && n < len(y) && x[n] == y[n] {
		n++
	}
	return "/" + strings.Join(x[:n], "/")
}

// words are the fields of an interface file, none if it cannot be read.
func words(path string) []string {
	b, _ := readFile(path)
	return strings.Fields(string(b))
}
