// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// process is a process of this machine.
type process struct{ task.Identity }

// alive reports whether the process runs. Another process with its pid does not count. A zombie does not count either:
// it no longer has ports and files.
func (p process) alive() bool {
	st, err := task.ReadStat(p.PID)
	return err == nil && st.Identity() == p.Identity && !st.Zombie
}

// signal sends sig to the process, never to another one that has got its pid. An exited process is not an error.
func (p process) signal(sig unix.Signal) error {
	fd, err := p.Open()
	if err == nil {
		defer unix.Close(fd)
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if err != nil && p.alive() {
		return fmt.Errorf("failed to signal process %d: %w", p.PID, err)
	}
	return nil
}

// gone waits until the process has ended.
func (p process) gone(ctx context.Context) error {
	if err := poll.Until(ctx, 10*time.Millisecond, func() (bool, error) { return !p.alive(), nil }); err != nil {
		return fmt.Errorf("failed to wait for the end of process %d: %w", p.PID, err)
	}
	return nil
}

// Processes returns the running processes of the agent in dir: the agent and others with its mark in their environment,
// programs below dir, supervisors whose state is in the agent's state directory, and the descendants of all these.
func Processes(dir string) ([]task.Identity, error) {
	all, err := task.Processes()
	if err != nil {
		return nil, fmt.Errorf("failed to list processes: %w", err)
	}
	found := map[int]task.Identity{}
	for pid := range all {
		p, err := procfs.NewProc(pid)
		if err != nil || !marked(p, dir) && !runsBelow(p, dir) && !supervises(p, dir) {
			continue
		}
		for _, st := range append(task.Descendants(all, pid), all[pid]) {
			if !st.Zombie && st.PID != os.Getpid() {
				found[st.PID] = st.Identity()
			}
		}
	}
	return slices.Collect(maps.Values(found)), nil
}

// supervises reports whether p is a supervisor with the agent's state directory in an argument. A supervisor has its
// own environment, without the mark, and may run from memory, not from a file below dir.
func supervises(p procfs.Proc, dir string) bool {
	args, err := p.CmdLine()
	return err == nil && len(args) > 0 && args[0] == "outrider-supervisor" &&
		slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, stateDir(dir)+"/") })
}

// marked reports whether a process was started with the mark of dir. A process of another user, whose environment
// cannot be read, counts as not marked.
func marked(p procfs.Proc, dir string) bool {
	env, err := p.Environ()
	return err == nil && slices.Contains(env, markVar+"="+dir)
}

func runsBelow(p procfs.Proc, dir string) bool {
	exe, err := p.Executable()
	return err == nil && strings.HasPrefix(exe, dir+"/")
}

// killAll kills the agent's processes until none is left: before it is killed, a process can start another one.
func killAll(ctx context.Context, dir string) error {
	known := map[int]process{} // Processes does not find a child again when its parent is dead
	err := poll.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		found, err := Processes(dir)
		if err != nil {
			return false, err
		}
		for _, id := range found {
			known[id.PID] = process{id}
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
		return fmt.Errorf("failed to end the agent's processes (%d left): %w", len(known), err)
	}
	return nil
}

// KillNamespace kills the first process of a PID namespace, and with it all others (pid_namespaces(7)). It waits for
// that process by calling wait, and then removes the cgroups of the agent that ran in the namespace. data is the
// agent's data directory, as a path for this process.
func KillNamespace(ctx context.Context, first *os.Process, data string, wait func() error) error {
	marks := allocMarks(data)
	node, _ := os.ReadFile(filepath.Join(data, "client", "client-id"))
	whole, _ := filepath.Match(uuid, string(node)) // false if the agent was killed while it wrote the file
	if whole {
		marks = append(marks, supervisorMark(string(node)))
	}
	return errors.Join(first.Kill(), wait(), removeCgroups(ctx, marks))
}

// unmountBelow detaches every mount at and below dir, the last one first. Nomad mounts a tmpfs for each task's secrets
// and private directory.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("failed to read the mounts: %w", err)
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("failed to unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}
