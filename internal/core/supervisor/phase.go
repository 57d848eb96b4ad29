// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import "log/slog"

// phase is a stage in the life of a process. It only advances. The server's mu guards it.
//
//	launch, exec         register, adopt
//	     |                     |
//	 starting                found
//	     |                     |
//	     +----> running <------+------> gone
//	               |                      |
//	               |   settle determines how it ended
//	               |                      |
//	               +-----> unsaved <------+   while its exit can't be written to disk
//	               |          |           |
//	               +-------> ended <------+
//	                          |
//	                      destroyed
//
// A process whose launch failed, or whose program never ran, gets no later phase: the server forgets it.
type phase int

const (
	starting  phase = iota // its launcher is running
	found                  // its state is on disk, and takeOver has not examined it yet
	running                // its pidfd is watched
	gone                   // it had ended before it was adopted, and no record of its exit exists
	unsaved                // its exit is known but not on disk yet, and the process is not reaped
	ended                  // its exit is on disk, or an exec session's exit was sent to its client
	destroyed              // it was destroyed: at most the record of its exit is left
)

func (p phase) String() string {
	return [...]string{"starting", "found", "running", "gone", "unsaved", "ended", "destroyed"}[p]
}

// mayRun reports whether the process may be running.
func (p phase) mayRun() bool { return p <= running }

// keepsSupervisor reports whether the supervisor must not end while a process is in this phase.
func (p phase) keepsSupervisor() bool { return p.mayRun() || p == unsaved }

func (s *server) phaseOf(p *process) phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.phase
}

// advance moves a process to a later phase. It ignores an earlier phase: a short program may have ended before its
// start returns. The caller holds mu.
func (p *process) advance(to phase) {
	if to > p.phase {
		p.phase = to
		p.log()
	}
}

func (p *process) log() {
	slog.Debug(p.phase.String(), "id", p.id, "pid", p.identity.PID, "exit", p.exit)
}
