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

// ours is the mode bit that marks the parent directories made by this package. Remove removes such a parent together
// with its last group, but never a parent that an operator made. The bit is the sticky bit: mkdir can set it, and a
// cgroup file system gives it no meaning.
const ours = unix.S_ISVTX

// Create makes the group's missing directories, kills the processes that an earlier run of the same task left in the
// existing ones, and writes the limits. After Create, start a process in the group with [Group.OpenDir] and
// [Group.TasksFiles].
//
// If Create fails, it removes the directories in Owned. The error wraps [ErrUnavailable] if Nomad's groups are missing,
// or if this process is not permitted to use them.
func (g Group) Create(l Limits) (err error) {
	if g.none() {
		return nil
	}
	if err := l.Check(); err != nil {
		return err
	}
	used := g.nomadDirs() // directories in which an earlier run may have left processes
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
				if err := renew(dir); err != nil { // if dir is in use, renew only undoes some settings
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

// delegate enables the controllers of a v2 group in the two groups above it, unless Nomad has made the group.
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

// clear prepares existing directories for a new run: it thaws them, kills their processes, removes their sub-cgroups,
// and replaces a cgroup2 directory that has been used.
func (g Group) clear(dirs []string) error {
	if len(dirs) == 0 {
		return nil
	}
	if freezer := g.V1["freezer"]; freezer != "" {
		// a frozen group would stop the next process before its first instruction
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

// usedBefore reports whether any process has ever run in a cgroup2 directory.
func usedBefore(dir string) bool {
	cpu, err := readKeys(filepath.Join(dir, "cpu.stat"))
	return err == nil && cpu["usage_usec"] > 0
}

// renew replaces an empty cgroup2 directory with a new one of the same name. If the directory is not empty, renew
// undoes the settings that would prevent a process from starting in it.
//
// A replacement is necessary because Nomad keeps the scope when it restarts a task in place. After one write to
// cgroup.kill, Linux since 6.14 and the stable kernels of 2025 immediately kill every process that is cloned into the
// group (CLONE_INTO_CGROUP), for as long as the group exists: fork compares the kill count of this group with that of
// the parent process's group. A new directory has a kill count of 0, and its statistics cover only this run.
func renew(dir string) error {
	if unix.Rmdir(dir) == nil {
		if err := mkdir(dir); err != nil {
			return unavailable(dir, err)
		}
		return nil
	}
	// No process can be started in a group that delegates controllers to sub-groups (cgroup-v2.rst, "No Internal Process
	// Constraint"). A task with write access may have done that.
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

// OpenDir opens the group's cgroup2 directory for CLONE_INTO_CGROUP (clone3(2), Linux 5.7). It returns nil without an
// error if the group has no such directory. Close the file after use.
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

// TasksFiles returns the v1 files with which a thread moves itself into the group: it writes "0" to each, in this
// order. Moving a whole process through cgroup.procs is much slower, since it waits for a system-wide RCU grace period.
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

// Remove removes the directories that we made, all sub-cgroups that the task made in any group, and any empty parents
// that we made. Nomad's directories stay. A missing directory is not an error. If a process is still in a group, Remove
// retries for a quarter of a second and then returns an error; call it again when the group is empty.
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
		if err := removeChildren(dir); err != nil { // Nomad cannot remove dir while it has sub-cgroups
			return err
		}
	}
	return nil
}

// none reports whether the group has mode None. This includes the zero value.
func (g Group) none() bool { return g.Mode != V1 && g.Mode != V2 }

// mkdir makes a cgroup and its missing parents. It returns EEXIST if the cgroup exists.
func mkdir(dir string) error {
	err := unix.Mkdir(dir, 0o755)
	// Try again if another task's Remove has removed the parent between mkparents and Mkdir.
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
	if err == unix.EEXIST || err == unix.ENOENT { // ENOENT: another task's Remove has removed a parent; mkdir retries
		return nil
	}
	return err
}

// removeTree removes a cgroup and those below it.
func removeTree(dir string) error {
	// the common case: no sub-cgroups, so one call is enough
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

// unavailable returns the error for a directory that cannot be used. It wraps ErrUnavailable if the cause is the
// configuration of this machine.
func unavailable(dir string, err error) error {
	switch err {
	case unix.ENOENT, unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOTDIR:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, dir, err)
	}
	return fmt.Errorf("failed to make cgroup %s: %w", dir, err)
}
