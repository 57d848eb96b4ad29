package supervisor

import (
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Nomad saves a task's id only after the start. An agent that is killed in between
// leaves a run that nobody asks for: its successor asks for the task under a new id.

func runOf(st *task.State) string { return st.AllocID + "/" + st.Task }

// takeUpOrDestroy deals with the earlier runs of a task that is to be started as p. One
// that was asked for in the same words, and of which no agent knows, is what p is to
// be: it is returned, as p. Any other is destroyed: the new run takes its cgroup, so
// this is the last chance to tell them apart.
func (s *server) takeUpOrDestroy(p *process, st *task.State, earlier []*process) (taken *process) {
	for _, other := range earlier {
		<-other.begun // ends with the launch, of which every step has its time; none waits for one that came later
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
			s.event(p.id, "An earlier run of this task can't be removed: %v", err)
		}
	}
	return taken
}

// takeUp makes an earlier run that of p's id, whether it runs or has ended, if it is the
// one that is asked for. The mark counts, which the driver removes without asking.
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
		s.event(p.id, "An earlier run of this task can't be taken up: %v", err)
		return false
	}
	if !s.store.Unclaimed(p.id) { // an agent has come to know of it meanwhile, or it was destroyed
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
	s.event(p.id, "Re-attached to what an earlier call had started (pid %d), since no agent has had the answer to that", st.Identity.PID)
	s.renameOutput(other, old, p.id)
	s.reportLate(other)
	return true
}

// knownUnderAnotherID reports whether a task with this main process is known under another id.
func (s *server) knownUnderAnotherID(p *process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.processes {
		if other != p && other.task == nil && !other.starting && p.identity.PID != 0 && other.identity == p.identity {
			return true
		}
	}
	return false
}
