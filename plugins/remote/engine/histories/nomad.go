// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package histories

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// server is Nomad's: it places one allocation of each job at a time, and says what became of
// each.
type server struct {
	mu     sync.Mutex
	jobs   []*job
	allocs map[string]*alloc
	silent map[string]bool // by node: its questions get no answer
	count  int
}

type job struct {
	name    string
	kind    endpoint.JobType
	version int // of its configuration
	purged  bool
	done    bool // a batch job that has completed
	again   bool // it may run again after a success: it was updated, an exit was told as lost, or see exit
}

type alloc struct {
	id, node string
	job      *job
	wanted   bool
	ended    bool // as the server knows
	lost     bool
	away     bool // its node is disconnected, and may come back
	starting bool // and has not waited for another's object
	known    bool // how its last run ended: it failed, or ended by itself
	told     bool // the same, and there is none after that
	why      engine.Decision
	changed  chan struct{} // closed when it is not wanted any more
}

// place makes an allocation of the job on a node, if it wants one.
func (s *server) place(j *job, node string) *alloc {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.purged || j.done {
		return nil
	}
	for _, a := range s.allocs {
		if a.job == j && a.wanted && !a.ended && !a.away {
			return nil
		}
	}
	s.count++
	id := fmt.Sprintf("%08x-%s", s.count, j.name)
	a := &alloc{id: id, node: node, job: j, wanted: true, changed: make(chan struct{})}
	s.allocs[a.id] = a
	return a
}

// stop has the allocation of a job stopped.
func (s *server) stop(j *job, why engine.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.allocs {
		if a.job == j {
			s.unwant(a, why)
		}
	}
}

// lose takes a node for lost.
func (s *server) lose(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.allocs {
		if a.node == node && !a.ended {
			s.unwant(a, engine.Decision{Action: engine.NotMine, Reason: "the allocation was lost with its node"})
			a.ended, a.lost = true, true
		}
	}
}

// disconnect takes a node for away: its allocations are replaced, and may come back.
func (s *server) disconnect(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.allocs {
		if a.node == node && !a.ended {
			a.away = true
		}
	}
}

// reconnect hears from a node again. For a while two allocations of a job may be wanted.
func (s *server) reconnect(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.allocs {
		if a.node == node {
			a.away = false
		}
	}
}

// reconcile keeps one allocation of each job that has two, by a number.
func (s *server) reconcile(random int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		var both []*alloc
		for _, id := range slices.Sorted(maps.Keys(s.allocs)) {
			if a := s.allocs[id]; a.job == j && a.wanted && !a.ended && !a.away {
				both = append(both, a)
			}
		}
		for i, a := range both {
			if i != random%len(both) {
				s.unwant(a, engine.Decision{Action: engine.Release, Reason: "another allocation was kept"})
			}
		}
	}
}

// unwant is called with the lock.
func (s *server) unwant(a *alloc, why engine.Decision) {
	if a.wanted {
		a.wanted, a.why = false, why
		close(a.changed)
	}
}

// end is what an agent tells of its allocation.
func (s *server) end(a *alloc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.told = !a.ended && a.known
	a.ended = true
	s.unwant(a, engine.Decision{Action: engine.Stop, Reason: "it has ended"})
}

// exit is how a task of an allocation ended. After a success another allocation runs the task again if its start is
// under way, has not seen the object, and gets no answer that it is not wanted any more: nothing tells it.
func (s *server) exit(a *alloc, e *task.Exit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.known = e != nil && (e.Lost || a.wanted && !e.At.IsZero())
	a.job.again = a.job.again || e == nil || e.Lost
	if a.job.kind != endpoint.Batch || !succeeded(e) {
		return
	}
	a.job.done = true
	for _, other := range s.allocs {
		if other.job == a.job {
			a.job.again = a.job.again || other.wanted && other.starting && s.silent[other.node]
			s.unwant(other, engine.Decision{Action: engine.Stop, Reason: "the job has completed"})
		}
	}
}

// succeeded is true for a program that ended by itself: a release has no time.
func succeeded(e *task.Exit) bool {
	return e != nil && !e.Lost && e.Code == 0 && e.Signal == 0 && !e.At.IsZero()
}

func (s *server) isWanted(a *alloc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.wanted
}

// start is called when a start begins that is wanted, when it waits for another's object, and when it ends.
func (s *server) start(a *alloc, under bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.starting = under
}

func (s *server) hush(node string, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[node] = silent
}

// seenBy is the API as a node sees it.
type seenBy struct {
	*server
	node string
}

var _ engine.Cluster = seenBy{}

func (s seenBy) Alloc(_ context.Context, _ engine.Asker, o endpoint.Owner) engine.Alloc {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.allocs[o.Alloc]
	switch {
	case s.silent[s.node]:
		return engine.Alloc{}
	case a == nil:
		return engine.Alloc{State: engine.NotFound}
	}
	out := engine.Alloc{State: engine.Alive, Lost: a.lost, Wanted: a.wanted, Job: a.job.kind, Told: a.told}
	switch {
	case a.ended:
		out.State = engine.Ended
	case a.away:
		out.State = engine.Disconnected
	}
	return out
}

func (s seenBy) Why(ctx context.Context, asker engine.Asker, _ engine.StopOptions) engine.Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.allocs[asker.Alloc]
	switch {
	case s.silent[s.node]:
		return engine.Decision{Action: engine.Release, Reason: "Nomad's API does not answer"}
	case a.wanted:
		return engine.Decision{Action: engine.Stop, Reason: "the task is restarted"}
	}
	return a.why
}

func (s seenBy) Orphan(_ context.Context, r *endpoint.Record, _ func(string) bool) (bool, string) {
	if s.isOrphan(r.Key.Job, s.node) {
		return true, "its job was purged"
	}
	return false, "its job runs"
}

func (s *server) isOrphan(name, node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.jobs, func(j *job) bool { return j.name == name })
	return i >= 0 && (s.jobs[i].purged || s.jobs[i].done) && !s.silent[node]
}

// restartPause is an agent's between two starts of a task.
const restartPause = time.Second
