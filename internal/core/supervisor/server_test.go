// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

func TestSupervisor_StaysWhileItHasATaskOrAClient(t *testing.T) {
	in := func(phase phase) *process {
		p := newProcess(fmt.Sprint(phase))
		p.phase = phase
		return p
	}
	for name, row := range map[string]struct {
		processes []*process
		clients   int
		mayEnd    bool
	}{
		"nothing":                      {nil, 0, true},
		"a task, and no client":        {[]*process{in(running)}, 0, false},
		"a client, and no task":        {nil, 1, false},
		"tasks that have ended":        {[]*process{in(ended), in(gone)}, 0, true},
		"one of several has not ended": {[]*process{in(ended), in(running), in(gone)}, 0, false},
		"an exit is not on disk yet":   {[]*process{in(ended), in(unsaved)}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{
				idle: time.Hour, busySince: time.Now().Add(-2 * time.Hour),
				processes: map[string]*process{}, clients: map[*wire.Peer]bool{},
			}
			for _, p := range row.processes {
				s.processes[p.id] = p
			}
			for range row.clients {
				s.clients[&wire.Peer{}] = true
			}
			test.Eq(t, row.mayEnd, s.mayEnd(), test.Sprint("the supervisor may end"))
			test.Eq(t, row.mayEnd, s.ending, test.Sprint("it accepts no more clients"))
			// no task and no client is left
			s.processes, s.clients = nil, nil
			test.Eq(t, row.mayEnd, s.mayEnd(), test.Sprint("the idle time starts over when the last task or client is gone"))
		})
	}
}

// Clients choose the names of sessions, and two clients may choose the same one.
func TestSession_ExitGoesToItsOwnerOnly(t *testing.T) {
	owner, other := wire.NewPeer(nil), wire.NewPeer(nil)
	s := &server{clients: map[*wire.Peer]bool{owner: true, other: true}, processes: map[string]*process{}}
	of := newProcess("task")
	session := newProcess("session")
	session.task, session.owner = of, owner
	s.processes["task"], s.processes["session"] = of, session

	s.publish(session, &task.Exit{Code: 3})
	must.Eq(t, 1, owner.Queued(),
		must.Sprintf("the session's exit: the owner got it %d times, another one %d times", owner.Queued(), other.Queued()))
	test.Eq(t, 0, other.Queued(),
		test.Sprintf("the session's exit: the owner got it %d times, another one %d times", owner.Queued(), other.Queued()))
	test.Nil(t, s.processes["session"], test.Sprint("the session was not removed"))
	s.publish(of, &task.Exit{Code: 4})
	s.publish(of, &task.Exit{Code: 5})
	must.Eq(t, 2, owner.Queued(),
		must.Sprintf("the task's exit %+v: sent %d and %d times", of.exit, owner.Queued()-1, other.Queued()))
	must.Eq(t, 1, other.Queued(),
		must.Sprintf("the task's exit %+v: sent %d and %d times", of.exit, owner.Queued()-1, other.Queued()))
	test.Eq(t, 4, of.exit.Code,
		test.Sprintf("the task's exit %+v: sent %d and %d times", of.exit, owner.Queued()-1, other.Queued()))
}

// After a burst of requests the supervisor returns memory to the system. Hellos, which arrive every second while a task
// runs, must not delay this.
func TestServer_HellosDoNotDelayTheReturnOfMemory(t *testing.T) {
	s := &server{}
	must.NotNil(t, s.answer(nil, &request{Op: opHello}, nil).Hello)
	test.Zero(t, s.lastRequest.Load())

	s.answer(nil, &request{Op: "unknown"}, nil)
	test.NonZero(t, s.lastRequest.Load())
}
