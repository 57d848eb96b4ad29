// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// Process identifies one process: the kernel uses a pid alone again.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`   // field 22 of /proc/<pid>/stat, proc_pid_stat(5)
	Boot  string `json:"boot_id"` // start times count from boot
}

// identify returns the identity of a process that exists now.
func identify(pid int) (Process, error) {
	st, err := stat(pid)
	if err != nil {
		return Process{}, fmt.Errorf("failed to identify process %d: %w", pid, err)
	}
	return Process{PID: pid, Start: st.Starttime, Boot: bootID()}, nil
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

func stat(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// ended says whether no thread of the process runs: a zombie has no ports and files any more.
func ended(st procfs.ProcStat) bool {
	return st.State == "X" || st.State == "Z" && st.NumThreads < 2
}

// alive says whether this very process runs.
func (p Process) alive() bool {
	if p.PID <= 0 || p.Boot != bootID() {
		return false
	}
	st, err := stat(p.PID)
	return err == nil && st.Starttime == p.Start && !ended(st)
}

// signal sends sig to this very process, through a pidfd so that a reused pid is
// never hit. A process that is gone is not an error.
func (p Process) signal(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.alive() { // checked while the pidfd holds the pid
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("failed to signal process %d: %w", p.PID, err)
	}
	return nil
}

// gone waits until the process has ended.
func (p Process) gone(ctx context.Context) error {
	if err := poll.Until(ctx, 10*time.Millisecond, func() (bool, error) { return !p.alive(), nil }); err != nil {
		return fmt.Errorf("process %d is still there: %w", p.PID, err)
	}
	return nil
}

// processes returns what was started by the agent of dir, with all descendants: any process that has its mark in the
// environment, runs a program below dir, or is a supervisor that keeps its state there.
func processes(dir string) ([]Process, error) {
	list, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("failed to list processes: %w", err)
	}
	boot := bootID()
	all := map[int]Process{}
	children := map[int][]int{}
	var roots []int
	for _, p := range list {
		st, err := p.Stat()
		if err != nil || ended(st) {
			continue // ended meanwhile
		}
		all[p.PID] = Process{PID: p.PID, Start: st.Starttime, Boot: boot}
		children[st.PPID] = append(children[st.PPID], p.PID)
		if marked(p, dir) || runsBelow(p, dir) || supervises(p, dir) {
			roots = append(roots, p.PID)
		}
	}
	var found []Process
	for len(roots) > 0 {
		pid := roots[0]
		roots = append(roots[1:], children[pid]...)
		if p, ok := all[pid]; ok && pid != os.Getpid() {
			found = append(found, p)
		}
		delete(all, pid) // each once
	}
	return found, nil
}

// supervises recognizes a plugin's supervisor, which has an environment of its own
// and may run from memory: its one argument names its state directory.
func supervises(p procfs.Proc, dir string) bool {
	args, err := p.CmdLine()
	return err == nil && len(args) > 0 && args[0] == "outrider-supervisor" &&
		slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, stateDir(dir)+"/") })
}

// marked reads the environment that a process was started with. What may not be read
// belongs to another user.
func marked(p procfs.Proc, dir string) bool {
	env, err := p.Environ()
	return err == nil && slices.Contains(env, markVar+"="+dir)
}

func runsBelow(p procfs.Proc, dir string) bool {
	exe, err := p.Executable()
	return err == nil && strings.HasPrefix(exe, dir+"/")
}

// command is the process's command line, for people.
func (p Process) command() string {
	proc, err := procfs.NewProc(p.PID)
	if err != nil {
		return ""
	}
	args, _ := proc.CmdLine()
	return strings.Join(args, " ")
}

// killAll ends every process of the agent, until none is left: one may start
// another while it is being killed. It returns the cgroups that supervisors had
// made for themselves.
func killAll(ctx context.Context, dir string) (leaves []string, err error) {
	known := map[int]Process{} // an orphan cannot be found a second time
	err = poll.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		found, err := processes(dir)
		if err != nil {
			return false, err
		}
		for _, p := range found {
			leaves = append(leaves, p.ownCgroups()...)
			known[p.PID] = p
		}
		for pid, p := range known {
			if !p.alive() {
				delete(known, pid)
			} else if err := p.signal(unix.SIGKILL); err != nil {
				return false, err
			}
		}
		return len(known) == 0, nil
	})
	if err != nil {
		return leaves, fmt.Errorf("failed to end %d processes: %w", len(known), err)
	}
	return leaves, nil
}

// ownCgroups are the cgroups of the process that are named after us.
func (p Process) ownCgroups() (dirs []string) {
	proc, err := procfs.NewProc(p.PID)
	if err != nil {
		return nil
	}
	cgroups, _ := proc.Cgroups()
	for _, c := range cgroups {
		if !strings.HasPrefix(filepath.Base(c.Path), "outrider-") {
			continue
		}
		hierarchies := []string{strings.TrimPrefix(strings.Join(c.Controllers, ","), "name=")}
		if len(c.Controllers) == 0 { // cgroup2, alone or beside v1
			hierarchies = []string{"", "unified"}
		}
		for _, h := range hierarchies {
			dir := filepath.Join(cgroupRoot, h, c.Path)
			if _, err := os.Stat(dir); err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// RunBelow lists the processes whose program is below dir: each one's id and command line.
func RunBelow(dir string) (found []string, err error) {
	if dir, err = resolve(dir); err != nil {
		return nil, err
	}
	list, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("failed to list processes: %w", err)
	}
	for _, p := range list {
		if runsBelow(p, dir) {
			found = append(found, fmt.Sprintf("%d (%s)", p.PID, Process{PID: p.PID}.command()))
		}
	}
	return found, nil
}
