// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The supervisor is a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)): what a task leaves behind becomes its child, and is
// reaped also where the init of a container reaps nothing. Otherwise zombies would count for the task's limit of
// processes.

func becomeSubreaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// reapPause is at least between two looks for orphans that have ended, so that many that end cost little.
const reapPause = 50 * time.Millisecond

// reapOrphans reaps, as long as the process lives, each child that it has not started.
func (s *server) reapOrphans() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for {
		found := children()
		known := s.ownChildren() // afterwards: what is forked from here on was not found
		for _, pid := range found {
			if !known[pid] {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
		time.Sleep(reapPause)
		<-ended
	}
}

// children are the pids of this process's children, by proc_pid_task(5). They are none if the kernel was built without
// CONFIG_PROC_CHILDREN.
func children() (pids []int) {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range files {
		text, _ := os.ReadFile(file) // not there: a thread that has ended has no children
		for _, field := range bytes.Fields(text) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// ownChildren are the pids of the children that are no orphans.
func (s *server) ownChildren() map[int]bool {
	s.forks.Lock() // a launcher that is just forked is not in the list before
	defer s.forks.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	own := map[int]bool{}
	for _, p := range s.processes {
		if p.identity.PID != 0 && p.phase < ended {
			own[p.identity.PID] = true
		}
	}
	for pid := range s.launchers {
		own[pid] = true
	}
	return own
}
