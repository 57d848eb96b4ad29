// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ours marks the parent directories that we made, so that the last group in one
// can remove it and one made by an operator stays. The sticky bit means nothing
// in a cgroup file system, and setting it with mkdir costs nothing.
const ours = unix.S_ISVTX

// Create makes the directories that are missing, ends what an earlier run of the
// same task left in them, and writes the limits. The caller then starts a
// process in the group ([Group.OpenDir], [Group.TasksFiles]).
//
// On an error nothing of ours is left. The error wraps [ErrUnavailable] where
// Nomad's groups are not there or may not be used.
func (g Group) Create(l Limits) (err error) {
	if g.none() {
		return nil
	}
	if err := l.Check(); err != nil {
		return err
	}
	used := g.nomadDirs() // directories that an earlier run may have left in use
	for _, dir := range append(slices.Clip(used), g.V1["cpuset"]) {
		if dir == "" {
			continue
		}
		if err := unix.Access(dir, unix.W_OK); err != nil {
			return unavailable(dir, err)
		}
	}

	defer func() {
		if err != nil {
			err = errors.Join(err, g.Remove())
		}
	}()
	for _, dir := range g.Owned {
		err := mkdir(dir)
		if err != nil && err != unix.EEXIST {
			return unavailable(dir, err)
		}
		if err == unix.EEXIST {
			used = append(used, dir)
			if dir == g.cgroup2() {
				if err := renew(dir); err != nil { // one with a process in it stays
					return err
				}
			}
		}
	}
	if !g.Leaf {
		if err := g.clear(used); err != nil {
			return err
		}
	}
	if err := g.delegate(); err != nil {
		return err
	}
	return g.limit(l)
}

// delegate has the groups above one that is ours on v2 give it its controllers.
func (g Group) delegate() error {
	if g.Mode != V2 || g.Leaf || !slices.Contains(g.Owned, g.Path) {
		return nil
	}
	parent := filepath.Dir(g.Path)
	for _, dir := range []string{filepath.Dir(parent), parent} {
		file := filepath.Join(dir, "cgroup.subtree_control")
		has := words(file)
		for _, controller := range g.Controllers {
			if slices.Contains(has, controller) {
				continue
			}
			if err := writeFile(file, "+"+controller); err != nil {
				return fmt.Errorf("%w: %s: %w", ErrUnavailable, file, err)
			}
		}
	}
	return nil
}

// clear brings directories that existed before into the state of new ones: no process,
// no sub-cgroup, not frozen, and able to hold processes.
func (g Group) clear(dirs []string) error {
	if len(dirs) == 0 {
		return nil
	}
	if freezer := g.V1["freezer"]; freezer != "" {
		// a frozen group would hold the next process before its first step
		if err := writeFile(filepath.Join(freezer, "freezer.state"), "THAWED"); err != nil {
			return err
		}
	}
	empty, err := g.empty(dirs)
	if err != nil {
		return err
	}
	if !empty {
		if err := g.Kill(); err != nil {
			return fmt.Errorf("failed to end an earlier run of the task: %w", err)
		}
	}
	for _, dir := range dirs {
		if err := removeChildren(dir); err != nil {
			return err
		}
	}
	if dir := g.cgroup2(); slices.Contains(dirs, dir) && usedBefore(dir) {
		return renew(dir)
	}
	return nil
}

// usedBefore reports whether a cgroup2 directory has ever held a process that ran.
func usedBefore(dir string) bool {
	cpu, err := readKeys(filepath.Join(dir, "cpu.stat"))
	return err == nil && cpu["usage_usec"] > 0
}

// renew replaces an empty cgroup2 directory with a new one of the same name.
//
// Linux since 6.14, and the stable kernels of 2025, kill at once whatever is
// cloned into a group (CLONE_INTO_CGROUP) that cgroup.kill was used on, for as
// long as that group exists: the fork compares the group's count of kills with
// that of the parent's group. Nomad keeps the scope when it restarts a task in
// place. A new directory has a count of 0, and statistics of this run alone.
//
// If the directory may not be removed it is cleaned as far as possible.
func renew(dir string) error {
	if unix.Rmdir(dir) == nil {
		if err := mkdir(dir); err != nil {
			return unavailable(dir, err)
		}
		return nil
	}
	// a task that may write here may have delegated controllers to groups of its
	// own: no process can be started in such a group (cgroup-v2.rst, "No Internal
	// Process Constraint")
	if down := words(filepath.Join(dir, "cgroup.subtree_control")); len(down) > 0 {
		if err := writeFile(filepath.Join(dir, "cgroup.subtree_control"), "-"+strings.Join(down, " -")); err != nil {
			return err
		}
	}
	if events, err := readKeys(filepath.Join(dir, "cgroup.events")); err == nil && events["frozen"] == 1 {
		return writeFile(filepath.Join(dir, "cgroup.freeze"), "0")
	}
	return nil
}

// OpenDir opens the cgroup2 directory for CLONE_INTO_CGROUP (clone3(2), Linux
// 5.7); nil if there is none. The caller closes it.
func (g Group) OpenDir() (*os.File, error) {
	dir := g.cgroup2()
	if dir == "" {
		return nil, nil
	}
	fd, err := retry(func() (int, error) {
		return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("failed to open cgroup %s: %w", dir, err)
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// TasksFiles are the v1 files to which a single thread writes "0" to move itself
// into the groups, in this order. That is much cheaper than moving a process by
// cgroup.procs, which waits for a grace period of the whole machine.
func (g Group) TasksFiles() []string {
	var out []string
	for _, controller := range v1Controllers {
		if dir := g.V1[controller]; dir != "" && g.Mode == V1 {
			if file := filepath.Join(dir, "tasks"); !slices.Contains(out, file) {
				out = append(out, file)
			}
		}
	}
	return out
}

// Remove removes the directories that we made, with all sub-cgroups that the
// task made anywhere, and the parents that we made if they are empty. Nomad's
// directories stay. What is not there is no error. A group that a process is
// still in is an error, after a quarter of a second of trying; call it again
// when the group is empty.
func (g Group) Remove() error {
	if g.none() {
		return nil
	}
	for _, dir := range g.Owned {
		if err := removeTree(dir); err != nil {
			return err
		}
		for up := filepath.Dir(dir); ; up = filepath.Dir(up) {
			var st unix.Stat_t
			if unix.Stat(up, &st) != nil || st.Mode&ours == 0 || unix.Rmdir(up) != nil {
				break
			}
		}
	}
	for _, dir := range g.nomadDirs() {
		if err := removeChildren(dir); err != nil { // Nomad could not remove its own with them
			return err
		}
	}
	return nil
}

// none reports whether there is nothing to do: also for the zero value.
func (g Group) none() bool { return g.Mode != V1 && g.Mode != V2 }

// mkdir makes a cgroup and the parents it needs. It returns EEXIST if it is there.
func mkdir(dir string) error {
	err := unix.Mkdir(dir, 0o755)
	// another task's Remove may take the parent away between the two calls
	for range 10 {
		if err != unix.ENOENT {
			break
		}
		if err := mkparents(filepath.Dir(dir)); err != nil {
			return err
		}
		err = unix.Mkdir(dir, 0o755)
	}
	return err
}

func mkparents(dir string) error {
	err := unix.Mkdir(dir, 0o755|ours)
	if err == unix.ENOENT && filepath.Dir(dir) != dir {
		if err := mkparents(filepath.Dir(dir)); err != nil {
			return err
		}
		err = unix.Mkdir(dir, 0o755|ours)
	}
	if err == unix.EEXIST || err == unix.ENOENT { // ENOENT: taken away again; mkdir retries
		return nil
	}
	return err
}

// removeTree removes a cgroup and those below it.
func removeTree(dir string) error {
	// the common case: one call and nothing below
	if err := unix.Rmdir(dir); err == nil || err == unix.ENOENT {
		return nil
	}
	wait := time.Millisecond
	for deadline := time.Now().Add(250 * time.Millisecond); ; wait *= 2 {
		var last error
		all := tree(dir)
		for _, d := range slices.Backward(all) {
			if err := unix.Rmdir(d); err != nil && err != unix.ENOENT {
				last = &os.PathError{Op: "rmdir", Path: d, Err: err}
			}
		}
		if last == nil {
			return nil
		}
		if !errors.Is(last, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("failed to remove cgroup: %w", last)
		}
		time.Sleep(wait)
	}
}

func removeChildren(dir string) error {
	for _, name := range children(dir) {
		if err := removeTree(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// unavailable is the error for a directory that cannot be used; it is
// ErrUnavailable if that is a matter of this machine's set-up.
func unavailable(dir string, err error) error {
	switch err {
	case unix.ENOENT, unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOTDIR:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, dir, err)
	}
	return fmt.Errorf("failed to make cgroup %s: %w", dir, err)
}
