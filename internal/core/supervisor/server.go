// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/collector"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// server is the supervisor's whole state. The event loop (loop_linux.go) and the connections' goroutines share it
// under mu. While mu is held, no call is made that can hang, and no system call on a path that a task chose.
type server struct {
	store task.Store
	build string
	leaf  cgroup.Group // the cgroup of this process; removed at the end

	surroundings *surroundings       // inherited from the process that started this one, or taken over from a later agent
	mounts       task.MountNamespace // the mount namespace of this process

	loop      *loop
	collector *collector.Client
	listener  *net.UnixListener
	lock      *os.File // flock on the store's directory: one supervisor per store
	idle      time.Duration

	launches sync.RWMutex // held for reading by a launch, for writing by an upgrade
	starters semaphore    // bounds the launches that are in prepare
	enders   semaphore    // bounds the kills and destroys, except those that wait for processes to end
	forks    sync.Mutex   // held while a process is forked and recorded

	lastRequest atomic.Int64 // time of the last reply, except to a hello, in ns since 1970

	mu        sync.Mutex
	processes map[string]*process // tasks and exec sessions by id
	clients   map[*wire.Peer]bool
	launchers map[int]bool // pids of launchers that have not executed their task's program yet, and of collectors
	busySince time.Time    // when a task or a client last existed
	retired   []string     // paths of destroyed tasks' records: an earlier supervisor's first, then this one's by age
	retiredAt time.Time    // when a task was last destroyed
	ending    bool
}

// semaphore limits how many goroutines do the same work at once. Go needs a thread for each goroutine that blocks in a
// system call, and keeps that thread: without the limit, a burst of a thousand requests would leave a thousand threads,
// and would not be handled faster.
type semaphore chan struct{}

func (s semaphore) acquire() { s <- struct{}{} }
func (s semaphore) release() { <-s }

// process is the main process of a task or of an exec session.
type process struct {
	id    string     // changes at most once, with mu and naming held: see takeUp
	run   string     // <alloc>/<task>: all runs of a task use the same cgroup, one after the other
	owner *wire.Peer // the client of an exec session; the session ends with the client's connection
	task  *process   // the task that this exec session belongs to; nil for a task

	identity task.Identity
	pidfd    int      // -1 once the exit is known
	child    bool     // whether it is a child of this process, so that wait4(2) returns its exit status
	mounts   *os.File // the mount namespace that it was started in: see mountsOf
	group    cgroup.Group
	oomKills uint64
	output   collection

	phase    phase
	state    *task.State   // the state on disk while phase is found; otherwise nil
	begun    chan struct{} // closed when the process leaves phase starting or found, or is forgotten
	exit     *task.Exit    // nil until phase unsaved or ended
	done     chan struct{} // closed when exit is set
	settling sync.Mutex    // held while settle determines how a process in phase gone ended

	naming   sync.Mutex   // held while an exit is recorded under the id, and while the id changes
	sessions sync.RWMutex // held for reading by the start of a session, for writing by destroyTask
}

func newProcess(id string) *process {
	return &process{
		id: id, pidfd: -1, group: cgroup.Group{Mode: cgroup.None},
		done: make(chan struct{}), begun: make(chan struct{}), output: collection{opened: make(chan struct{})},
	}
}

func newTask(st *task.State) *process {
	p := newProcess(st.ID)
	p.run, p.output.Output = runOf(st), st.Output
	return p
}

// serve answers a client's requests in the background until the client disconnects, and then ends its exec sessions.
func (s *server) serve(t *wire.Transport) {
	c := wire.NewPeer(t)
	s.mu.Lock()
	ending := s.ending
	if !ending {
		s.clients[c] = true
	}
	s.mu.Unlock()
	if ending { // refuse the client, which then starts another supervisor
		t.Shut()
		return
	}
	go wire.Serve(c, func(req *request, files []*os.File) (any, []*os.File) {
		return s.answer(c, req, files), nil
	}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.clients, c)
		s.busySince = time.Now()
		for _, p := range s.processes {
			if p.owner == c {
				p.killSession()
			}
		}
	})
}

// send queues an event for a client. It disconnects a client whose queue is full; when that client reconnects, it gets
// what it missed.
func send(c *wire.Peer, r *reply) {
	if !c.Event(r) {
		c.Close()
	}
}

func (s *server) answer(c *wire.Peer, req *request, files []*os.File) *reply {
	if req.Op != opHello { // a hello arrives every second while a task runs, and must not delay FreeOSMemory
		defer func() { s.lastRequest.Store(time.Now().UnixNano()) }()
	}
	r := &reply{}
	var err error
	switch req.Op {
	case opHello:
		r.Hello = &hello{Protocol: protocolVersion, Build: s.build, PID: os.Getpid(), Surroundings: s.surroundings}
	case opLaunch:
		r.Stat, err = s.launch(req.State)
	case opAdopt:
		r.Stat, err = s.adopt(req.State, files)
	case opSignal:
		err = s.signal(req.ID, req.Signal, req.Mode)
	case opKill:
		err = s.kill(req.ID)
	case opDestroy:
		err = s.destroyTask(req.ID)
	case opExec:
		err = s.exec(c, req, files)
	case opUpgrade:
		err = s.upgrade(req.Build, req.Surroundings, files) // returns only if it failed
	default:
		err = fmt.Errorf("unknown request %q", req.Op)
	}
	r.Error = toRemote(err)
	return r
}

// find returns the process with this id. It waits, for a limited time, while the process is being launched or adopted.
func (s *server) find(id string) (*process, error) {
	for {
		s.mu.Lock()
		p := s.processes[id]
		pending := p != nil && (p.phase == starting || p.phase == found)
		s.mu.Unlock()
		switch {
		case p == nil:
			return nil, ErrUnknownTask
		case !pending:
			return p, nil
		}
		<-p.begun
	}
}

func (s *server) statusOf(p *process) (*Status, error) {
	id := s.idOf(p)
	st, err := s.store.Load(id)
	if err != nil && p.task == nil {
		// the file is damaged: use what is in memory
		st = &task.State{ID: id, Identity: p.identity, Group: p.group, Output: p.output.Output}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Status{Running: p.phase.mayRun(), State: st, Exit: p.exit}, nil
}

func (s *server) idOf(p *process) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.id
}

// event sends an event to every client.
func (s *server) event(id, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	slog.Info(message, "id", id)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.clients {
		send(c, &reply{Event: &Event{ID: id, Message: message}})
	}
}

// publish sets a process's exit, once, and sends it: a task's to all clients, an exec session's only to its owner.
func (s *server) publish(p *process, e *task.Exit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.exit != nil {
		return
	}
	p.exit = e
	if p.phase != unsaved {
		p.advance(ended)
	}
	s.busySince = time.Now()
	for c := range s.clients {
		if p.owner == nil || p.owner == c {
			send(c, &reply{ID: p.id, Exit: e})
		}
	}
	close(p.done) // last, so that a client that waits in kill gets the exit before the reply
	if p.task != nil {
		delete(s.processes, p.id)
	}
}

// mayEnd reports whether the supervisor has been without clients and running processes for long enough. Once it has
// returned true, the server refuses clients.
func (s *server) mayEnd() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	busy := len(s.clients) > 0
	for _, p := range s.processes {
		busy = busy || p.phase.keepsSupervisor()
	}
	if busy {
		s.busySince = now
	}
	// wait longer after a destroy: if the agent was killed just then, the next agent still asks for the task's exit
	s.ending = now.Sub(s.busySince) >= s.idle && now.Sub(s.retiredAt) >= 3*s.idle
	return s.ending
}
