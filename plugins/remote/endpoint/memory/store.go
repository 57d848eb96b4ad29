// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package memory is an endpoint within the test's process, with faults at will: calls that
// never arrive, answers that are lost, delays, clock steps, reboots. Its programs do nothing
// until they get a signal or are ended by the test. It may be used in a bubble of
// testing/synctest: nothing in it waits for anything but channels and timers.
package memory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Store is the endpoint. Each node has a Client of it.
type Store struct {
	lease time.Duration

	mu      sync.Mutex
	objects map[string]*object
	changed chan struct{} // closed, and made anew, at each change
	step    time.Duration // of the clock
	runs    []*Run
	pid     int

	// Stubborn programs end at SIGKILL alone.
	Stubborn bool

	// ReleaseRaises has Release raise the epoch, as it may.
	ReleaseRaises bool

	// Refuse, if set, is asked before a program is run: an error fails Start.
	Refuse func(s *endpoint.Spec) error
}

// object is a task there.
type object struct {
	record  endpoint.Record
	expires time.Time
	run     *Run
	output  map[string][]byte
	files   map[string][]byte
	damaged bool
}

// Run is one run of a program.
type Run struct {
	Name     string
	Key      endpoint.Key
	Owner    endpoint.Owner // who started it
	Spec     *endpoint.Spec
	From, To time.Time  // To is zero while it runs
	Exit     *task.Exit // nil while it runs
	Signals  []string
}

// New returns an endpoint without objects.
func New(lease time.Duration) *Store {
	return &Store{lease: lease, objects: map[string]*object{}, changed: make(chan struct{})}
}

func (s *Store) now() time.Time { return time.Now().Add(s.step) }

// touch wakes everybody who waits for a change. The caller holds mu.
func (s *Store) touch() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// read copies a record. The caller holds mu.
func (s *Store) read(o *object) *endpoint.Record {
	if o.damaged {
		return &endpoint.Record{Name: o.record.Name, State: endpoint.Damaged, Reason: "half of it is missing"}
	}
	r := o.record
	r.Logs, r.Ports, r.More = maps.Clone(r.Logs), maps.Clone(r.Ports), maps.Clone(r.More)
	r.Age, r.Lease = s.now().Sub(r.Since), o.expires.Sub(s.now())
	return &r
}

// Records are those of all objects, by name.
func (s *Store) Records() []*endpoint.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*endpoint.Record
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		list = append(list, s.read(s.objects[name]))
	}
	return list
}

// Runs are all runs of programs so far.
func (s *Store) Runs() []Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Run
	for _, r := range s.runs {
		c := *r
		c.Signals = slices.Clone(r.Signals)
		list = append(list, c)
	}
	return list
}

// Files are what was put to an object, by name.
func (s *Store) Files(name string) map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[name]; o != nil {
		return maps.Clone(o.files)
	}
	return nil
}

// Step moves the endpoint's clock.
func (s *Store) Step(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step += d
	s.touch()
}

// Write is output of an object's program.
func (s *Store) Write(name, stream string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[name]; o != nil {
		o.output[stream] = append(o.output[stream], data...)
		s.touch()
	}
}

// Exit ends an object's program.
func (s *Store) Exit(name string, exit task.Exit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[name]; o != nil {
		s.exit(o, exit)
	}
}

// Reboot ends all programs, nobody knows how.
func (s *Store) Reboot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects {
		s.exit(o, task.Exit{Lost: true, Reason: "the host was restarted"})
	}
}

// Lose removes an object without a trace.
func (s *Store) Lose(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[name]; o != nil {
		s.exit(o, task.Exit{})
		delete(s.objects, name)
		s.touch()
	}
}

// Damage makes the record of an object one that can't be read. Its program runs on.
func (s *Store) Damage(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[name]; o != nil {
		o.damaged = true
		s.touch()
	}
}

// exit ends a program that runs. The caller holds mu.
func (s *Store) exit(o *object, exit task.Exit) {
	if o.run == nil || !o.run.To.IsZero() {
		return
	}
	now := s.now()
	exit.At = now
	o.run.To, o.run.Exit = time.Now(), &exit
	o.record.State, o.record.Exit, o.record.Since, o.record.PID = endpoint.Exited, &exit, now, 0
	s.touch()
}

// signal gives a program a signal. The caller holds mu.
func (s *Store) signal(o *object, name string) {
	if o.run == nil || !o.run.To.IsZero() {
		return
	}
	o.run.Signals = append(o.run.Signals, name)
	number := map[string]int{"SIGINT": 2, "SIGKILL": 9, "SIGTERM": 15}[name]
	if number == 9 || number != 0 && !s.Stubborn {
		s.exit(o, task.Exit{Signal: number})
	}
}

// find returns an object if its epoch is that of ref. The caller holds mu.
func (s *Store) find(ref endpoint.Ref) (*object, error) {
	o := s.objects[ref.Name]
	switch {
	case o == nil:
		return nil, endpoint.ErrGone
	case o.damaged:
		return nil, errors.New("the record can't be read")
	case !o.record.Is(ref):
		return nil, fmt.Errorf("%w: %+v is at epoch %d of start %s", endpoint.ErrEpoch, ref,
			o.record.Epoch, o.record.Owner.TaskID)
	}
	return o, nil
}

// store keeps what m has. The caller holds mu.
func (o *object) store(m endpoint.Mutable) {
	if o.record.Logs == nil {
		o.record.Logs = map[string]endpoint.LogMark{}
	}
	maps.Copy(o.record.Logs, m.Logs)
	o.record.Files = cmp.Or(m.Files, o.record.Files)
	o.record.Told = o.record.Told || m.Told
}
