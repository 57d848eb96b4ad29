// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package shim is what runs on a host for its clients: it keeps the records of objects, and
// drives this core's supervisor, which runs their programs. A shim ends with its connection.
// The supervisor and the programs outlive it. Several shims, of several nodes and versions, use
// one state directory at the same time.
package shim

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
)

// Config is what a Shim needs to know.
type Config struct {
	StateDir string // absolute
	Log      func(format string, args ...any)

	// Idle is how long the supervisor stays without task and client; 0 means 10 s.
	Idle time.Duration
}

// Shim keeps the objects of a state directory.
type Shim struct {
	cfg     Config
	store   task.Store
	client  *supervisor.Client
	support cgroup.Support
	notify  *notifier

	mu    sync.Mutex
	users map[string]int // of what the client holds, by the supervisor's id
}

// New returns a Shim. Nothing is made before its first call.
func New(cfg Config) (*Shim, error) {
	if !filepath.IsAbs(cfg.StateDir) {
		return nil, fmt.Errorf("the state directory %q is not absolute", cfg.StateDir)
	}
	cfg.StateDir = filepath.Clean(cfg.StateDir)
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	s := &Shim{
		cfg: cfg, store: task.Store{Dir: filepath.Join(cfg.StateDir, "supervisor")}, support: support(),
		notify: newNotifier(), users: map[string]int{},
	}
	const most = 107 // sun_path of unix(7)
	if n := len(s.store.Socket()); n > most {
		return nil, fmt.Errorf("the state directory %q is %d bytes too long for a unix socket in it: set state_dir to a "+
			"shorter one", cfg.StateDir, n-most)
	}
	s.client = supervisor.NewClient(supervisor.Config{
		Store: s.store, Leaf: s.leaf(), Idle: cfg.Idle, Log: cfg.Log,
		OnEvent: func(e supervisor.Event) { cfg.Log("task %s: %s", e.ID, e.Message) },
	})
	return s, nil
}

// Close ends what this process does. Objects go on.
func (s *Shim) Close() {
	s.client.Close()
	s.notify.close()
}

// create is endpoint.Endpoint's Create.
func (s *Shim) create(ctx context.Context, r *endpoint.Record, lease time.Duration) error {
	if r == nil {
		return errors.New("a record is missing")
	}
	if err := checkTaskName(r.Key.Task); err != nil {
		return err
	}
	l, err := s.makeObject(ctx, r.Name)
	if err != nil {
		return err
	}
	defer l.unlock()
	if l.o != nil {
		return endpoint.ErrExists
	}
	l.o = &stored{
		Record: endpoint.Record{
			Name: r.Name, Key: r.Key, Hash: r.Hash, Epoch: 1, Owner: r.Owner, State: endpoint.Starting,
			Job: r.Job, JobIndex: r.JobIndex, Reason: r.Reason, Orphan: r.Orphan, Kill: r.Kill, Mutable: r.Mutable,
			More: r.More,
		},
		LeaseEnd: clockIn(lease),
		TaskID:   r.Name + "/" + rand.Text(),
	}
	l.o.change()
	l.o.Created = l.o.Since
	if err := l.save(); err != nil {
		_ = os.Remove(filepath.Join(l.path, recordFile))
		_ = os.Remove(l.path)
		return fmt.Errorf("failed to write the object's record: %w", err)
	}
	return nil
}

// take is endpoint.Endpoint's Take.
func (s *Shim) take(ctx context.Context, ref endpoint.Ref, o endpoint.Owner, lease time.Duration) (*endpoint.Record,
	error) {
	l, err := s.owned(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer l.unlock()
	if err := s.settle(ctx, l); err != nil {
		s.cfg.Log("object %s: %v", ref.Name, err)
	}
	l.o.Epoch++
	l.o.change()
	l.o.Owner, l.o.LeaseEnd = o, clockIn(lease)
	if l.o.State == endpoint.Released {
		l.o.State = endpoint.Running
	}
	l.o.Reason, l.o.GivenUp, l.o.Stopping = "taken over", false, clock{}
	if err := l.save(); err != nil {
		return nil, fmt.Errorf("failed to write the object's record: %w", err)
	}
	return l.o.public(), nil
}

// renew is endpoint.Endpoint's Renew.
func (s *Shim) renew(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable, lease time.Duration) error {
	l, err := s.owned(ctx, ref)
	if err != nil {
		return err
	}
	defer l.unlock()
	l.o.LeaseEnd = clockIn(lease)
	if err := l.renew(m); err != nil {
		return err
	}
	if !m.Told || l.o.Told {
		return nil
	}
	l.o.Told = true // must not be forgotten, whatever happens to the host
	return l.save()
}

// release is endpoint.Endpoint's Release.
func (s *Shim) release(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable, reason string) error {
	l, err := s.owned(ctx, ref)
	if err != nil {
		return err
	}
	defer l.unlock()
	if err := s.settle(ctx, l); err != nil {
		return err
	}
	switch {
	case l.o.GivenUp: // the answer to this call did not arrive
		return nil
	case l.o.State != endpoint.Running:
		return fmt.Errorf("failed to release object in state %s", l.o.State)
	}
	l.o.State = endpoint.Released
	l.o.change()
	l.o.Reason, l.o.GivenUp = reason, true
	l.o.Told = l.o.Told || m.Told
	if err := l.renew(m); err != nil {
		return err
	}
	return l.save()
}

// get is endpoint.Endpoint's Get.
func (s *Shim) get(ctx context.Context, name string) (*endpoint.Record, error) {
	o, err := s.look(ctx, name)
	if errors.Is(err, errDamaged) {
		return damaged(name, err), nil
	}
	if err != nil {
		return nil, err
	}
	return o.public(), nil
}

func damaged(name string, err error) *endpoint.Record {
	return &endpoint.Record{Name: name, State: endpoint.Damaged, Reason: err.Error()}
}

// look reads an object, and settles it if nobody else is at it.
func (s *Shim) look(ctx context.Context, name string) (*stored, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	o, err := readObject(s.objectDir(name))
	if err != nil || o.State == endpoint.Exited || s.seemsSettled(o) {
		return o, err
	}
	l, err := s.tryLock(name)
	if err != nil || l.o == nil {
		if l != nil {
			l.unlock()
		}
		return readObject(s.objectDir(name)) // whoever is at it settles it
	}
	defer l.unlock()
	if err := s.settle(ctx, l); err != nil {
		s.cfg.Log("object %s: %v", name, err)
	}
	return l.o, nil
}

// list is endpoint.Endpoint's List.
func (s *Shim) list(ctx context.Context) ([]*endpoint.Record, error) {
	entries, err := os.ReadDir(s.objects())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	records := []*endpoint.Record{}
	for _, e := range entries[:min(len(entries), protocol.MaxRecords)] {
		r, err := s.get(ctx, e.Name())
		switch {
		case errors.Is(err, endpoint.ErrGone):
			s.sweep(e.Name())
		case err != nil:
			records = append(records, damaged(e.Name(), err))
		default:
			records = append(records, r)
		}
	}
	return records, nil
}

// sweep removes a directory without a record, which a killed removal has left.
func (s *Shim) sweep(name string) {
	l, err := s.tryLock(name)
	if err != nil {
		return
	}
	defer l.unlock()
	if l.o == nil {
		_ = s.removeFiles(l)
	}
}
