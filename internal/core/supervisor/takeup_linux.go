// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Nomad saves a task's id only after the start. If the agent is killed before it has saved the id, no agent knows of
// the run, and the next agent starts the task under a new id.

func runOf(st *task.State) string { return st.AllocID + "/" + st.Task }

// takeUpOrDestroy handles the earlier runs of a task that is about to start as p. A run of the same request that no
// agent knows of gets the id of p and is returned. All others are destroyed, because the new run uses the same cgroup:
// their processes could not be distinguished from its own.
func (s *server) takeUpOrDestroy(p *process, st *task.State, earlier []*process) (taken *process) {
	for _, other := range earlier {
		<-other.begun // this wait ends: each step of a launch has a time limit, and no launch waits for a later launch
		if taken == nil && s.takeUp(p, st, other) {
			taken = other
			continue
		}
		s.mu.Lock()
		id, there := other.id, s.processes[other.id] == other
		s.mu.Unlock()
		if !there {
			continue
		}
		if err := s.destroyTask(id); err != nil {
			s.event(p.id, "Failed to remove an earlier run of this task: %v", err)
		}
	}
	return taken
}

// takeUp gives p's id to an earlier run of the same request, whether it is running or has ended. It does so only if
// the run is marked as unclaimed on disk; the driver removes the mark once an agent knows of the run.
func (s *server) takeUp(p *process, asked *task.State, other *process) bool {
	other.naming.Lock()
	defer other.naming.Unlock()
	if asked.Request == "" || !s.store.Unclaimed(other.id) {
		return false
	}
	st, err := s.store.Load(other.id)
	if err != nil || st.Request != asked.Request {
		return false
	}
	old := other.id
	if err := s.store.Rename(st, p.id); err != nil {
		s.event(p.id, "Failed to re-attach to an earlier run of this task: %v", err)
		return false
	}
	if !s.store.Unclaimed(p.id) { // claimed or destroyed in the meantime
		_ = s.store.Rename(st, old)
		return false
	}
	s.mu.Lock()
	there := s.processes[old] == other
	if there {
		delete(s.processes, old)
		other.id = p.id
		s.processes[p.id] = other
	}
	s.mu.Unlock()
	if !there { // it was destroyed
		_ = s.store.Remove(p.id)
		return false
	}
	s.event(p.id, "Re-attached to an earlier run of this task (pid %d): it had started, but no agent received the reply",
		st.Identity.PID)
	s.renameOutput(other, old, p.id)
	s.reportLate(other)
	return true
}

// knownUnderAnotherID reports whether a task with this main process is known under another id.
func (s *server) knownUnderAnotherID(p *process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.processes {
		if other != p && other.task == nil && other.phase != starting && p.identity.PID != 0 && other.identity == p.identity {
			return true
		}
	}
	return false
}
