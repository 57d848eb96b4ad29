// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Without cgroups, a task is the tree below its main process. That is a subreaper
// (PR_SET_CHILD_SUBREAPER survives exec, prctl(2)), so that all processes which it forks
// stay below it for as long as it lives. When it ends, what is left of the tree becomes
// children of the supervisor, and is killed.

// signalTree sends a signal to a process and everything below it.
func signalTree(root task.Identity, sig unix.Signal) error {
	all := task.Tree(root)
	if len(all) == 0 {
		return unix.ESRCH
	}
	for _, st := range all {
		signalOne(st, sig, 0)
	}
	return nil
}

// wholeGroup is PIDFD_SIGNAL_PROCESS_GROUP of pidfd_send_signal(2), Linux 6.9: the
// process group that the process leads, all of it at one moment.
const wholeGroup = 1 << 2

// signalOne signals the very process that was seen, never one that has got its pid since.
func signalOne(seen task.Stat, sig unix.Signal, flags int) {
	withPidfd(seen, func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, flags) })
}

// reapOne reaps the very process that was seen, if it is a child of this one.
func reapOne(seen task.Stat) {
	withPidfd(seen, func(fd int) error { return unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil) })
}

func withPidfd(seen task.Stat, do func(fd int) error) {
	if fd, err := seen.Identity().Open(); err == nil {
		_ = do(fd) // it may have ended meanwhile
		unix.Close(fd)
	}
}

// killTree ends a process and everything below it. The process itself is killed
// last, since it keeps the others together.
func killTree(id task.Identity, timeout time.Duration) error {
	gone := false
	var root task.Stat
	err := endAll(timeout, func() ([]task.Stat, error) {
		table, err := task.Processes()
		root = table[id.PID]
		gone = root.PID == 0 || root.Start != id.Start || id.BootID != task.BootID()
		if err != nil || gone {
			return nil, err // what was below it is the supervisor's now: killOrphans
		}
		// if the kernel can, nearly the whole tree at once: a fork bomb is faster than a
		// reader of /proc
		signalOne(root, unix.SIGSTOP, wholeGroup)
		signalOne(root, unix.SIGSTOP, 0)
		return task.Descendants(table, id.PID), nil
	})
	if !gone && err == nil {
		signalOne(root, unix.SIGKILL, 0)
	}
	return err
}

// endAll kills the processes that list returns until there are none but zombies.
// They are stopped before the first is killed, until no new one is seen: what is
// stopped forks no more, and keeps its place under a limit of processes, which
// others would fill. It takes some readings of /proc, however many they are.
func endAll(timeout time.Duration, list func() ([]task.Stat, error)) error {
	stopped := map[task.Identity]bool{}
	wait := time.Millisecond
	for begin := time.Now(); ; {
		found, err := list()
		found = slices.DeleteFunc(found, func(st task.Stat) bool { return st.Zombie })
		if err != nil || len(found) == 0 {
			return err
		}
		fresh := false
		for _, st := range found {
			if id := st.Identity(); !stopped[id] {
				stopped[id], fresh = true, true
				signalOne(st, unix.SIGSTOP, 0)
			}
		}
		if fresh && time.Since(begin) < timeout/2 {
			continue
		}
		for _, st := range found {
			signalOne(st, unix.SIGKILL, 0)
		}
		if time.Since(begin) > timeout {
			return fmt.Errorf("%d processes of the task do not end", len(found))
		}
		time.Sleep(wait)
		wait = min(2*wait, 50*time.Millisecond)
	}
}

// orphanTime bounds how long what a task left behind may take to be gone, within
// which its exit waits. It is microseconds for what gets a processor.
const orphanTime = killTimeout / 2

// killOrphans kills and reaps what ended tasks without a cgroup left behind, and
// returns when it is gone: the children of this process that it does not know, with
// all that is below them.
func (s *server) killOrphans() error {
	s.orphans.Lock()
	defer s.orphans.Unlock()
	self := os.Getpid()
	var found []task.Stat
	err := endAll(orphanTime, func() ([]task.Stat, error) {
		table, err := task.Processes()
		known := s.ownChildren() // after the table: what is forked from here on is not in it
		found = nil
		var roots []int
		for _, st := range table {
			if st.Parent != self || known[st.PID] {
				continue
			}
			found, roots = append(found, st), append(roots, st.PID)
			if st.Zombie {
				reapOne(st)
			}
		}
		found = slices.DeleteFunc(append(found, task.Descendants(table, roots...)...), func(st task.Stat) bool {
			return s.unkillable[st.Identity()]
		})
		return found, err
	})
	if err != nil { // killed, and in an uninterruptible system call: no later exit waits for them
		for _, st := range found {
			s.unkillable[st.Identity()] = true
		}
	}
	return err
}

// ownChildren are the pids of the children that are no orphans.
func (s *server) ownChildren() map[int]bool {
	s.forks.Lock() // a launcher that is just forked is not in the list before
	defer s.forks.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	own := map[int]bool{}
	for _, p := range s.processes {
		if p.identity.PID != 0 && (!p.ended() || p.unsaved) {
			own[p.identity.PID] = true
		}
	}
	for pid := range s.launchers {
		own[pid] = true
	}
	return own
}

// The processes of a task without a cgroup have a mark: their limit of file locks
// (RLIMIT_LOCKS), which Linux has not used since 2.4.25, is a number of the task's
// own. It is inherited over fork and exec, and to read it can't hang, as reading an
// environment can. A process can take it off by lowering the limit.

// newMark is the mark for what is started under this id.
func newMark(id string) uint64 {
	sum := fnv.New64a()
	sum.Write([]byte(id))
	return sum.Sum64()>>2 | 1<<61 // neither unlimited nor a likely choice
}

// marked adds a mark to a task's limits, where this process may set it.
func marked(limits []task.Rlimit, mark uint64) []task.Rlimit {
	var own unix.Rlimit
	if mark == 0 || unix.Getrlimit(unix.RLIMIT_LOCKS, &own) != nil || own.Max < mark {
		return limits
	}
	limits = slices.DeleteFunc(slices.Clone(limits), func(l task.Rlimit) bool { return l.Resource == unix.RLIMIT_LOCKS })
	return append(limits, task.Rlimit{Resource: unix.RLIMIT_LOCKS, Soft: mark, Hard: mark})
}

// killMarked kills the processes that a task left to init: one that was adopted,
// so that this process is no ancestor of it.
func killMarked(mark uint64) error {
	if mark == 0 {
		return nil
	}
	return endAll(orphanTime, func() ([]task.Stat, error) {
		table, err := task.Processes()
		var found []task.Stat
		for _, st := range table {
			var l unix.Rlimit
			if st.PID != os.Getpid() && unix.Prlimit(st.PID, unix.RLIMIT_LOCKS, nil, &l) == nil && l.Max == mark {
				found = append(found, st)
			}
		}
		return found, err
	})
}
