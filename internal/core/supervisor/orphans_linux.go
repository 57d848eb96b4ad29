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

// The supervisor is a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)): it adopts and reaps the orphans of tasks, because
// the init of a container may reap nothing. Zombies would count toward the task's process limit.

func becomeSubreaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// reapPause is the minimum time between two searches for dead orphans, which bounds the cost of many deaths.
const reapPause = 50 * time.Millisecond

// reapOrphans reaps each child that the supervisor has not started. It never returns.
func (s *server) reapOrphans() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for {
		found := children()
		known := s.ownChildren() // call it last, or else a child forked in between would count as an orphan
		for _, pid := range found {
			if !known[pid] {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
		time.Sleep(reapPause)
		<-ended
	}
}

// children returns the pids of this process's children (proc_pid_task(5)), or none if the kernel was built without
// CONFIG_PROC_CHILDREN.
func children() (pids []int) {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range files {
		text, _ := os.ReadFile(file) // an error means that the thread has ended: it has no children
		for _, field := range bytes.Fields(text) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// ownChildren returns the pids of the children that the supervisor has started.
func (s *server) ownChildren() map[int]bool {
	s.forks.Lock() // waits until a launcher that is being forked is in s.launchers
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
