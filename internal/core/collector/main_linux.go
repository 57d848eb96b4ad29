// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package collector

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// Role is the argument that makes the supervisor's binary a collector.
const Role = "collect"

// buildVar is the environment variable with the collector's build. The build is not an argument, so ps shows only the
// store's directory.
const buildVar = "OUTRIDER_COLLECTOR"

// socketFD is the descriptor of the connection to the supervisor that started the collector.
const socketFD = 3

// linger is how long a collector waits for the next supervisor after the last one has disconnected. After that it exits
// as soon as all writers are gone.
const linger = 10 * time.Second

// server is the state of the collector.
type server struct {
	store task.Store
	build string
	loop  *loop

	mu       sync.Mutex
	outputs  map[string]*output // by task id
	closing  int                // number of outputs that were removed from the map but are not closed yet
	moving   bool
	ending   bool
	client   *wire.Peer // the connection of the latest supervisor, nil after it has disconnected
	alone    time.Time  // when the last client disconnected
	pending  []Event
	requests atomic.Int64
	wake     chan struct{} // receives a value when a supervisor has disconnected or sent opEnd
}

// maxPendingEvents limits the number of events that wait for the next supervisor.
const maxPendingEvents = 1000

// Main runs the collector. It does not return.
func Main() {
	// signals to the agent's process group must not end this process
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE, syscall.SIGTERM)
	debug.SetMaxThreads(1 << 20) // each task whose files hang blocks a thread
	s := &server{store: task.Store{Dir: os.Args[2]}, build: os.Getenv(buildVar), outputs: map[string]*output{},
		alone: time.Now(), wake: make(chan struct{}, 1)}
	syscall.CloseOnExec(socketFD)
	conn, err := wire.FromFD(socketFD)
	if err == nil {
		s.loop, err = newLoop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "outrider-collector:", err)
		os.Exit(1)
	}
	go s.loop.run(0)
	s.client = &wire.Peer{} // run would exit if client were nil before converse sets it
	go s.converse(conn)
	s.run()
	if s.isNamed() { // otherwise the files belong to another collector
		_ = os.Remove(Socket(s.store))
		_ = os.Remove(identityFile(s.store))
	}
	os.Exit(0)
}

// run returns when the collector is no longer needed.
func (s *server) run() {
	var asked, freed int64
	for tick := time.Tick(time.Second / 4); ; {
		select {
		case <-tick:
			// when a burst of requests is over, the heap and the stacks are mostly garbage
			now := s.requests.Load()
			if now == asked && now != freed {
				freed = now
				debug.FreeOSMemory()
			}
			asked = now
		case <-s.wake:
		}
		if s.mayEnd() {
			return
		}
	}
}

func (s *server) mayEnd() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing > 0:
		return false
	case s.client == nil && !(s.moving && s.isNamed()): // another collector is active, or will be
		return true
	case s.ending:
	case s.client != nil || time.Since(s.alone) < linger:
		return false
	}
	for _, o := range s.outputs {
		if !o.atEnd() {
			return false
		}
	}
	// All output is in the files, so nothing is lost if a later supervisor finds no FIFOs.
	for _, o := range s.outputs {
		o.removeFIFOs()
	}
	return true
}

// isNamed reports whether the store names this process as the active collector. It returns false if the directory was
// removed: the next supervisor then starts another collector.
func (s *server) isNamed() bool {
	id, err := readIdentity(s.store)
	return err == nil && id.PID == os.Getpid() && id.Alive()
}

// listen accepts connections of further supervisors.
func (s *server) listen() error {
	path := Socket(s.store)
	_ = os.Remove(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	go wire.Accept(l, func(w *wire.Transport) { go s.converse(w) })
	return nil
}

// converse serves one supervisor until it disconnects.
func (s *server) converse(t *wire.Transport) {
	c := wire.NewPeer(t)
	s.mu.Lock()
	s.client, s.ending = c, false
	pending := s.pending
	s.pending = nil
	s.mu.Unlock()
	for _, e := range pending {
		s.event(e)
	}
	wire.Serve(c, s.answer, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.client == c {
			s.client, s.alone = nil, time.Now()
		}
	})
	s.wakeUp()
}

// wakeUp makes run check whether the collector is still needed.
func (s *server) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *server) answer(req *request, files []*os.File) (any, []*os.File) {
	s.requests.Add(1)
	r := &reply{}
	var ends []*os.File
	var err error
	switch req.Op {
	case opHello:
		s.mu.Lock()
		r.Build, r.Tasks = s.build, slices.Sorted(maps.Keys(s.outputs))
		for id, o := range s.outputs {
			o.mu.Lock()
			if o.hangs > 0 {
				r.Hangs = append(r.Hangs, id)
			}
			o.mu.Unlock()
		}
		s.mu.Unlock()
	case opTake:
		ends, err = s.take(req, files, r)
	case opGo:
		err = s.start()
	case opDrain:
		if o := s.find(req.ID); o != nil {
			r.Waits = !o.drain()
		}
	case opClose:
		r.Waits = !s.close(req.ID)
	case opRename:
		s.rename(req.ID, req.To)
	case opEnd:
		s.mu.Lock()
		s.ending = true
		s.mu.Unlock()
		defer s.wakeUp()
	default:
		err = fmt.Errorf("unknown request %q", req.Op)
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r, ends
}

// take begins to collect the output of a task. For a new task with CollectorNomad it returns the task's ends of the
// FIFOs. If a file cannot be opened, take returns an error for a new task, and sends an event for a running one.
func (s *server) take(req *request, files []*os.File, r *reply) (ends []*os.File, err error) {
	if req.Spec == nil || req.Spec.ID == "" {
		return nil, errors.New("the request to collect output has no task id")
	}
	o := &output{server: s, spec: *req.Spec, opened: make(chan struct{})}
	s.mu.Lock()
	known := s.outputs[o.spec.ID]
	// If the known output has other FIFOs, a supervisor was killed while it started the task: close that output.
	if known != nil && req.New && known.spec.Output.FIFOs != o.spec.Output.FIFOs {
		s.mu.Unlock()
		s.close(o.spec.ID)
		s.mu.Lock()
		known = s.outputs[o.spec.ID]
	}
	if known == nil {
		s.outputs[o.spec.ID] = o
	}
	s.mu.Unlock()
	switch {
	case known == nil:
		o.mayHang("", func() { _ = o.open(files, req.New) })
	case req.New: // the request was repeated over another connection
		o = known
		<-o.opened
	default:
		return nil, nil
	}
	r.From, err = o.from, o.err
	if err == nil && req.New {
		o.mayHang("", func() { ends, err = o.nomadFIFOs() })
	}
	switch {
	case err != nil && req.New:
		wire.CloseAll(ends)
		s.close(o.spec.ID)
		return nil, err
	case err != nil:
		o.events(err.Error())
	}
	s.mu.Lock()
	moving := s.moving
	s.mu.Unlock()
	if moving {
		o.watch(s.loop)
	}
	return ends, nil
}

// start begins to move output, and listens on the socket through which later supervisors connect.
func (s *server) start() error {
	if err := s.listen(); err != nil {
		return err
	}
	s.mu.Lock()
	s.moving = true
	all := slices.Collect(maps.Values(s.outputs))
	s.mu.Unlock()
	for _, o := range all {
		go o.watch(s.loop)
	}
	return nil
}

func (s *server) find(id string) *output {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outputs[id]
}

func (s *server) close(id string) bool {
	s.mu.Lock()
	o := s.outputs[id]
	if o == nil {
		s.mu.Unlock()
		return true
	}
	delete(s.outputs, id)
	s.closing++
	s.mu.Unlock()
	return o.close(s.loop, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closing--
	})
}

func (s *server) rename(id, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.outputs[id]; o != nil {
		delete(s.outputs, id)
		s.outputs[to] = o
		o.rename(to)
	}
}

// event sends an event to the supervisor, or keeps it for the next supervisor.
func (s *server) event(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil && s.client.Event(&reply{Event: &e}) {
		return
	}
	if len(s.pending) < maxPendingEvents {
		s.pending = append(s.pending, e)
	}
}

// Socket is the path of a collector's listening socket.
func Socket(s task.Store) string { return s.Dir + "/collector.sock" }
