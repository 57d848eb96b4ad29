// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package histories

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// agent is a node's, with its plugin. It does with a task what Nomad's does.
type agent struct {
	run  *run
	name string
	ep   endpoint.Endpoint

	mu      sync.Mutex
	handles map[string]handle // by allocation: what it has saved
	known   map[string]*alloc
	count   int

	life   context.Context // until its next crash
	crash  context.CancelFunc
	engine *engine.Engine
	group  sync.WaitGroup
}

type handle struct {
	id    string
	state []byte
}

type aTask interface {
	driver.Task
	driver.Saver
	driver.Stopper
	Told(ctx context.Context)
}

// boot starts the agent and its plugin, and recovers what it knows.
func (a *agent) boot() {
	a.life, a.crash = context.WithCancel(context.Background())
	a.engine = engine.New(engine.Options{
		Endpoint: func(string) (endpoint.Endpoint, error) { return a.ep, nil },
		Task: func(_ context.Context, s *driver.Start) (*engine.Task, error) {
			return &engine.Task{
				Endpoint: "it", Spec: a.run.spec(s.Task.JobID),
				Stop: engine.StopOptions{OnDrain: "release", OnUnknown: "release"},
				Kill: endpoint.Kill{Signal: "SIGTERM", Grace: a.run.o.Lease / 10},
			}, nil
		},
		Cluster: seenBy{a.run.server, a.name}, Name: a.run.o.Name, Lease: a.run.o.Lease, Node: a.name,
		ReapAfter: a.run.o.Lease, Logger: hclog.NewNullLogger(),
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, al := range a.known {
		a.group.Go(func() { a.runTask(al) })
	}
}

// kill ends the agent and its plugin.
func (a *agent) kill() {
	a.crash()
	_ = a.engine.Close()
	a.group.Wait()
}

func (a *agent) add(al *alloc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known[al.id] = al
	a.group.Go(func() { a.runTask(al) })
}

func (a *agent) drop(al *alloc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, al.id)
	delete(a.handles, al.id)
}

func (a *agent) handle(al *alloc) (h handle, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h, ok = a.handles[al.id]
	return h, ok
}

func (a *agent) save(al *alloc, h handle) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handles[al.id] = h
}

// runTask is Nomad's task runner, until the allocation has ended or the agent crashes.
func (a *agent) runTask(al *alloc) {
	for a.life.Err() == nil {
		t, id := a.recoverTask(al)
		if t == nil {
			a.run.server.start(al, true)
			if !a.run.server.isWanted(al) {
				break
			}
			t, id = a.startTask(al)
			a.run.server.start(al, false)
			if t == nil {
				a.sleep(restartPause)
				continue
			}
		}
		again := a.waitTask(al, t)
		if a.life.Err() != nil {
			return
		}
		t.Told(a.life)
		a.run.event(a, al)("the agent is told: %+v", t.Exit())
		a.run.server.exit(al, t.Exit())
		_ = a.engine.Destroy(a.life, id)
		a.mu.Lock()
		delete(a.handles, al.id)
		a.mu.Unlock()
		if !again {
			break
		}
		a.sleep(restartPause)
	}
	if a.life.Err() == nil {
		a.run.server.end(al)
		a.drop(al)
	}
}

func (a *agent) recoverTask(al *alloc) (aTask, string) {
	h, ok := a.handle(al)
	if !ok {
		return nil, ""
	}
	t, err := a.engine.Recover(a.life, &drivers.TaskConfig{ID: h.id}, h.state, a.run.event(a, al))
	if err != nil {
		_ = a.engine.Destroy(a.life, h.id)
		a.mu.Lock()
		delete(a.handles, al.id)
		a.mu.Unlock()
		return nil, ""
	}
	return t.(aTask), h.id
}

func (a *agent) startTask(al *alloc) (aTask, string) {
	c := a.config(al)
	told := a.run.event(a, al)
	event := func(format string, args ...any) {
		if strings.HasPrefix(format, "Waiting") {
			a.run.server.start(al, false)
		}
		told(format, args...)
	}
	got, err := a.engine.Start(a.life, &driver.Start{Task: c, Event: event})
	if err != nil {
		a.run.event(a, al)("start: %v", err)
		return nil, ""
	}
	t := got.(aTask)
	state, err := t.Saved()
	if err != nil {
		a.run.t.Errorf("failed to save a task: %v", err)
		return nil, ""
	}
	if a.life.Err() == nil { // otherwise it was killed before it knew
		a.save(al, handle{c.ID, state})
	}
	return t, c.ID
}

// waitTask returns when the task has ended, and whether it is to be started again.
func (a *agent) waitTask(al *alloc, t aTask) (again bool) {
	select {
	case <-t.Ended():
		return a.run.server.isWanted(al) && !(al.job.kind == endpoint.Batch && succeeded(t.Exit()))
	case <-a.run.restarts(al):
		_ = t.Stop(a.life, a.run.o.Lease/10, "")
		again = true
	case <-al.changed:
		_ = t.Stop(a.life, a.run.o.Lease/10, "")
	case <-a.life.Done():
		return false
	}
	select {
	case <-t.Ended():
	case <-a.life.Done():
	}
	return again && a.run.server.isWanted(al)
}

func (a *agent) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.life.Done():
	}
}

func (a *agent) config(al *alloc) *drivers.TaskConfig {
	a.mu.Lock()
	a.count++
	id := fmt.Sprintf("%s/task/%s-%08x", al.id, a.name, a.count)
	a.mu.Unlock()
	dir := filepath.Join(a.run.dir, al.id)
	c := &drivers.TaskConfig{
		ID: id, Name: "task", JobID: al.job.name, TaskGroupName: "group", Namespace: "default",
		AllocID: al.id, NodeID: a.name, AllocDir: dir,
		Env: map[string]string{"NOMAD_ALLOC_INDEX": "0", "NOMAD_REGION": "global", "NOMAD_ALLOC_ID": al.id},
	}
	d := c.TaskDir()
	shared := filepath.Join(dir, "alloc")
	for _, path := range []string{d.LocalDir, d.SecretsDir, filepath.Join(shared, "logs"), filepath.Join(shared, "data")} {
		if err := os.MkdirAll(path, 0o750); err != nil {
			a.run.t.Errorf("failed to make directories of an allocation: %v", err)
		}
	}
	return c
}

// allocs are those that the agent runs.
func (a *agent) allocs() []*alloc {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.known))
}
