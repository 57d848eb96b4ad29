// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import "log/slog"

// phase is where a process is in its life. It only ever moves to a later one; mu of the server guards it.
//
//	launch, exec         register, adopt
//	     |                     |
//	 starting                found
//	     |                     |
//	     +----> running <------+------> gone
//	               |                      |
//	               |   settle finds out how it ended
//	               |                      |
//	               +-----> unsaved <------+   while its exit can't be written to disk
//	               |          |           |
//	               +-------> ended <------+
//	                          |
//	                      destroyed
//
// A launch that fails and a process on disk whose program never ran have no later phase: they are forgotten.
type phase int

const (
	starting  phase = iota // its launcher is at work
	found                  // known by its state on disk, which has not been looked at
	running                // its pidfd is watched
	gone                   // adopted too late: there is no such process, and no record of its exit
	unsaved                // its exit is known and not on disk yet, and the process not reaped
	ended                  // its exit is on disk; that of an exec session is with its client
	destroyed              // nothing is left of it
)

func (p phase) String() string {
	return [...]string{"starting", "found", "running", "gone", "unsaved", "ended", "destroyed"}[p]
}

// mayRun reports whether there may be such a process.
func (p phase) mayRun() bool { return p <= running }

// keepsSupervisor reports whether the supervisor has to stay for it.
func (p phase) keepsSupervisor() bool { return p.mayRun() || p == unsaved }

func (s *server) phaseOf(p *process) phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.phase
}

// advance moves a process to a later phase. It may be in a still later one: a short program has ended before its start
// is over. The caller holds mu.
func (p *process) advance(to phase) {
	if to > p.phase {
		p.phase = to
		p.log()
	}
}

// log writes a line for the phase that a process has come to.
func (p *process) log() {
	slog.Debug(p.phase.String(), "id", p.id, "pid", p.identity.PID, "exit", p.exit)
}
