// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// killTimeout limits the duration of Kill. A process takes longer than a few milliseconds to die only if it is in
// uninterruptible sleep (for example on a dead network file system) or gets no CPU time.
const killTimeout = 10 * time.Second

// ErrSelf is returned by Signal and Kill if the calling process is in the group or in a group below it: a supervisor
// with corrupt state must not kill itself or the machine.
var ErrSelf = errors.New("cgroup contains the calling process")

// Procs returns the pids of all processes in the group and in the groups below it, sorted and without duplicates. On
// v1, a process is listed even if only one hierarchy has it in the group. A removed group has no processes. Processes
// outside the caller's PID namespace are not listed.
func (g Group) Procs() ([]int, error) { return procs(g.dirs()...) }

func procs(dirs ...string) ([]int, error) {
	var out []int
	for _, dir := range dirs {
		for _, d := range tree(dir) {
			pids, err := readPIDs(filepath.Join(d, "cgroup.procs"))
			// a threaded group does not list processes; its threaded domain above it does
			if err != nil && !IsMissing(err) && !errors.Is(err, unix.EOPNOTSUPP) {
				return nil, fmt.Errorf("failed to list processes: %w", err)
			}
			out = append(out, pids...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Empty reports whether no process is left in the group or below it. Zombies do not count. A removed group is empty.
func (g Group) Empty() (bool, error) { return g.empty(g.dirs()) }

func (g Group) empty(dirs []string) (bool, error) {
	for _, dir := range dirs {
		if dir == g.cgroup2() {
			events, err := readKeys(filepath.Join(dir, "cgroup.events"))
			if err != nil && !IsMissing(err) {
				return false, fmt.Errorf("failed to read cgroup events: %w", err)
			}
			if events["populated"] != 0 {
				return false, nil
			}
			continue
		}
		pids, err := procs(dir)
		if err != nil || len(pids) > 0 {
			return false, err
		}
	}
	return true, nil
}

// Signal sends a signal once to every process that is in the group now. A process that exits during the call is not an
// error.
func (g Group) Signal(sig unix.Signal) error {
	pids, err := g.targets()
	if err != nil {
		return err
	}
	return g.signal(pids, sig)
}

// signal sends a signal to those processes in pids that are still in the group. If a process outside the group has
// reused a pid, it does not get the signal.
func (g Group) signal(pids []int, sig unix.Signal) error {
	var errs []error
	for some := range slices.Chunk(pids, 256) { // each process needs a file descriptor during the call
		errs = append(errs, g.signalSome(some, sig))
	}
	return errors.Join(errs...)
}

func (g Group) signalSome(pids []int, sig unix.Signal) error {
	var errs []error
	failed := func(pid int, err error) {
		if err != nil && err != unix.ESRCH {
			errs = append(errs, fmt.Errorf("failed to signal process %d: %w", pid, err))
		}
	}
	fds := make(map[int]int, len(pids))
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			failed(pid, err)
			continue
		}
		defer unix.Close(fd)
		fds[pid] = fd
	}
	now, err := g.Procs() // after PidfdOpen, so a process outside the group that has reused a pid gets no signal
	for _, pid := range now {
		if fd, open := fds[pid]; open {
			failed(pid, unix.PidfdSendSignal(fd, sig, nil, 0))
		}
	}
	return errors.Join(append(errs, err)...)
}

// targets is like Procs, but returns ErrSelf if the caller is among the processes.
func (g Group) targets() ([]int, error) {
	pids, err := g.Procs()
	if err == nil && slices.Contains(pids, unix.Getpid()) {
		return nil, fmt.Errorf("failed to signal %s: %w", g.dirs()[0], ErrSelf)
	}
	return pids, err
}

// KillOnce sends SIGKILL to every process of the group and does not wait until they are dead. If the kernel has
// cgroup.kill, one call is enough, since no fork escapes. Otherwise KillOnce freezes the group during the call if
// possible; call it again until [Group.Empty] reports true, as [Group.Kill] does.
func (g Group) KillOnce() error {
	pids, err := g.targets()
	if err != nil || g.none() {
		return err
	}
	rest := pids // the processes to signal: all that cgroup.kill does not reach
	if dir := g.cgroup2(); dir != "" {
		empty, err := g.empty([]string{dir})
		if err != nil || empty && g.Mode == V2 {
			return err
		}
		var inside []int
		if !empty { // cgroup.kill makes a group unusable for the next start (see renew), so skip an empty one
			if inside, err = procs(dir); err != nil {
				return err
			}
			err = writeFile(filepath.Join(dir, "cgroup.kill"), "1")
			if err == nil && g.Mode == V2 {
				return nil
			}
			if err != nil && !IsMissing(err) {
				return err
			}
			if err == nil {
				rest = slices.DeleteFunc(rest, func(pid int) bool { return slices.Contains(inside, pid) })
			}
		}
	}
	if len(rest) == 0 && g.V1["freezer"] == "" {
		return nil
	}
	thaw, err := g.freeze(len(rest) > 0)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		// list again: processes may have been forked before the freeze took effect
		if now, err := g.targets(); err == nil {
			rest = now
		}
	}
	return errors.Join(g.signal(rest, unix.SIGKILL), thaw())
}

// freeze freezes the group if enabled is true. It always returns a function that thaws the group; call that after every
// kill, since someone else may have frozen the group, and on v1 a frozen process dies only after a thaw.
func (g Group) freeze(enabled bool) (thaw func() error, err error) {
	path, on, off := filepath.Join(g.V1["freezer"], "freezer.state"), "FROZEN", "THAWED"
	if g.Mode == V2 {
		path, on, off = filepath.Join(g.Path, "cgroup.freeze"), "1", "0" // since Linux 5.2
	}
	write := func(value string) error {
		if g.Mode == V1 && g.V1["freezer"] == "" {
			return nil
		}
		if err := writeFile(path, value); err != nil && !IsMissing(err) {
			return err
		}
		return nil
	}
	if enabled {
		err = write(on)
	}
	return func() error { return write(off) }, err
}

// Kill kills every process of the group and waits until the group is empty, for at most ten seconds. After that time it
// returns an error that lists the remaining processes.
func (g Group) Kill() error {
	wait := time.Millisecond
	for deadline := time.Now().Add(killTimeout); ; wait = min(2*wait, 50*time.Millisecond) {
		if err := g.KillOnce(); err != nil {
			return err
		}
		// most killed processes are gone within microseconds
		for pause := 50 * time.Microsecond; pause < wait; pause *= 2 {
			if empty, err := g.Empty(); empty || err != nil {
				return err
			}
			time.Sleep(pause)
		}
		if empty, err := g.Empty(); empty || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			pids, err := g.Procs()
			return errors.Join(fmt.Errorf("processes %v of cgroup %s did not die within %v", pids, g.dirs()[0], killTimeout),
				err)
		}
	}
}

// memoryEvents counts events of the memory controller in the group and the groups below it. On v2 it returns the value
// of key in memory.events. On v1 it calls count for each directory and returns the sum.
func (g Group) memoryEvents(key string, count func(dir string) (uint64, error)) (uint64, error) {
	if !g.Has("memory") {
		return 0, nil
	}
	if g.Mode == V2 {
		events, err := readKeys(filepath.Join(g.Path, "memory.events"))
		return events[key], err
	}
	var sum uint64
	for i, dir := range tree(g.V1["memory"]) {
		n, err := count(dir)
		if err != nil && (i == 0 || !IsMissing(err)) {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// LimitHits counts how often the group, or a group below it, ran out of memory at its own limit. It does not count
// when a group above it, or the machine, runs out of memory. On v1 it also counts reclaims of page cache at the limit.
func (g Group) LimitHits() (uint64, error) {
	hits, err := g.memoryEvents("oom", func(dir string) (uint64, error) {
		return readUint(filepath.Join(dir, "memory.failcnt"))
	})
	if err != nil {
		return 0, fmt.Errorf("failed to count how often the memory limit was hit: %w", err)
	}
	return hits, nil
}

// OOMKills returns how many processes of the group the OOM killer has killed. On v1 the count starts when Nomad makes
// the group, possibly for an earlier run of the task: compare it with the count after Create.
func (g Group) OOMKills() (uint64, error) {
	kills, err := g.memoryEvents("oom_kill", func(dir string) (uint64, error) {
		control, err := readKeys(filepath.Join(dir, "memory.oom_control")) // has the key oom_kill since Linux 4.13
		return control["oom_kill"], err
	})
	if err != nil {
		return 0, fmt.Errorf("failed to count OOM kills: %w", err)
	}
	return kills, nil
}
