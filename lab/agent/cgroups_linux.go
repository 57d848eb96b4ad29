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
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/internal/cache"
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
	hosts, _ := filepath.Glob(filepath.Join(state, "*/cgroups.lock"))
	for _, lock := range hosts {
		name := fmt.Sprintf("outrider-remote-%.4x", sha256.Sum256([]byte(filepath.Dir(lock))))
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

// removeParents removes the cgroups that Nomad created for itself, if they are empty and no other agent runs: an agent
// may be about to use an empty one. Those of tasks may be a driver's that runs without an agent.
func removeParents(ctx context.Context, dirs []string) error {
	return locked(ctx, unix.LOCK_EX, func() error {
		if agentsRun() {
			return nil
		}
		for _, dir := range dirs {
			for _, name := range []string{"share", "reserve", "share.slice", "reserve.slice", "."} {
				os.Remove(filepath.Join(dir, name))
			}
		}
		return nil
	})
}

// startBesideRemovals starts an agent's process while no other process is in removeParents.
func startBesideRemovals(ctx context.Context, cmd *exec.Cmd) error {
	return locked(ctx, unix.LOCK_SH, cmd.Start)
}

// locked calls f with a lock on the machine's cgroups, which every agent's starter takes.
func locked(ctx context.Context, how int, f func() error) error {
	root, err := os.Open(cgroupRoot)
	if err != nil {
		return f() // there are none
	}
	defer root.Close()
	if err := cache.Flock(ctx, root, how, nil); err != nil {
		return err
	}
	return f()
}

// agentsRun reports whether any Nomad agent runs on this machine, or a process that an agent of this package has
// started: that agent may be restarting.
func agentsRun() bool {
	list, _ := procfs.AllProcs()
	return slices.ContainsFunc(list, func(p procfs.Proc) bool {
		args, err := p.CmdLine()
		if err != nil {
			return false
		}
		env, _ := p.Environ()
		return ofAgent(args, env)
	})
}

// ofAgent recognizes an agent, or what it has started, by command line and environment.
func ofAgent(args, env []string) bool {
	if slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, markVar+"=") }) {
		return true
	}
	return len(args) > 1 && strings.HasPrefix(filepath.Base(args[0]), "nomad") && args[1] == "agent"
}
