// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

const cgroupRoot = "/sys/fs/cgroup"

// nomadCgroups returns the directories below which Nomad creates the cgroups of tasks, whether they exist or not: one
// with cgroup v2, one for each controller with v1. Their names cannot be configured
// (client/lib/cgroupslib/switch_linux.go).
func nomadCgroups() []string {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{filepath.Join(cgroupRoot, "nomad.slice")}
	}
	entries, _ := os.ReadDir(cgroupRoot)
	var dirs []string
	for _, e := range entries {
		if e.IsDir() { // links are second names of a controller (cpu -> cpu,cpuacct)
			dirs = append(dirs, filepath.Join(cgroupRoot, e.Name(), "nomad"))
		}
	}
	return dirs
}

// taskCgroups returns the cgroups of these allocations.
func taskCgroups(allocs map[string]bool) []string {
	var found []string
	for _, parent := range nomadCgroups() {
		filepath.WalkDir(parent, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return nil // a cgroup may go away while we look
			}
			// <alloc>.<task> with v1, <alloc>.<task>.scope with v2
			alloc, _, ok := strings.Cut(e.Name(), ".")
			if ok && allocs[alloc] {
				found = append(found, path)
				return filepath.SkipDir
			}
			return nil
		})
	}
	return found
}

// stateCgroups returns the cgroups that may belong to the plugins' state directory. They are found by its files, since
// the processes in them may have ended: exec-lite kills a supervisor on a host of the remote driver with the SSH server
// that is its task.
func stateCgroups(state string) (dirs []string) {
	// of supervisors, by their stores: <driver>/<node> (internal/core/driver), and the same below a host's directory
	for _, pattern := range []string{"*/*-*-*-*-*", "*/*/*-*-*-*-*"} {
		stores, _ := filepath.Glob(filepath.Join(state, pattern))
		for _, store := range stores {
			id, _, _ := strings.Cut(filepath.Base(store), "-")
			name := "outrider-" + filepath.Base(filepath.Dir(store)) + "-" + id
			for _, parent := range nomadCgroups() {
				dirs = append(dirs, filepath.Join(parent, name), filepath.Join(parent, name+".scope")) // v1, v2
			}
		}
	}
	// of the tasks on a host, by its directory (plugins/remote/shim)
	hosts, _ := filepath.Glob(filepath.Join(state, "*/runs"))
	for _, runs := range hosts {
		name := fmt.Sprintf("outrider-tasks-%.4x", sha256.Sum256([]byte(filepath.Dir(runs))))
		v1, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", name))
		dirs = append(append(dirs, v1...), filepath.Join(cgroupRoot, name+".slice"))
	}
	return dirs
}

// subtree lists a cgroup and those below it, children first.
func subtree(dir string) []string {
	var dirs []string
	filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append([]string{path}, dirs...)
		}
		return nil
	})
	return dirs
}

// removeCgroups kills what is in the cgroups and in those below them, and removes them.
func removeCgroups(ctx context.Context, dirs []string) error {
	var all []string
	for _, dir := range dirs {
		all = append(all, subtree(dir)...)
	}
	for _, dir := range all {
		var removal error
		err := poll.Until(ctx, 10*time.Millisecond, func() (bool, error) {
			killCgroup(dir)
			removal = os.Remove(dir)
			return removal == nil || errors.Is(removal, fs.ErrNotExist), nil
		})
		if err != nil {
			return fmt.Errorf("failed to remove cgroup: %w", removal)
		}
	}
	return nil
}

func killCgroup(dir string) {
	// a frozen v1 cgroup holds back SIGKILL
	os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
			unix.Kill(pid, unix.SIGKILL) // it is in the cgroup of a task of ours
		}
	}
}
