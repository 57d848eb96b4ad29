// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint/memory"
)

const testLease = 30 * time.Second

// world is an endpoint and what Nomad's API says, for tests in a bubble of synctest: there a
// lease of 30 s takes no time.
type world struct {
	t     *testing.T
	store *memory.Store
	other *memory.Store // of another endpoint, empty
	nomad *nomad
	count int // of starts
}

// inWorld runs f in a bubble.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		n := &nomad{allocs: map[string]Alloc{}, why: map[string]Decision{}}
		f(t, &world{t: t, store: memory.New(testLease), other: memory.New(testLease), nomad: n})
	})
}

// nomad is a Cluster that says what it is told.
type nomad struct {
	mu      sync.Mutex
	silent  bool
	foreign bool // it knows no other node than the asker's
	allocs  map[string]Alloc
	why     map[string]Decision
	orphans map[string]string // by the job: why nobody will come
	at      string            // the endpoint of all tasks, empty if that does not matter
	asked   int
}

func (n *nomad) Alloc(_ context.Context, a Asker, o endpoint.Owner) Alloc {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	if n.silent {
		return Alloc{}
	}
	got, ok := n.allocs[o.Alloc]
	switch {
	case ok:
		return got
	case n.foreign && o.Node != a.Node:
		return Alloc{State: Foreign}
	}
	return Alloc{State: NotFound}
}

func (n *nomad) Why(_ context.Context, a Asker, o StopOptions) Decision {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d, ok := n.why[a.Alloc]; ok && !n.silent {
		return d
	}
	return Decision{Action: Action(o.OnUnknown), Reason: "Nomad's API does not answer"}
}

func (n *nomad) Orphan(_ context.Context, r *endpoint.Record, elsewhere func(string) bool) (bool, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch why, ok := n.orphans[r.Key.Job]; {
	case n.silent:
	case ok:
		return true, why
	case n.at != "" && elsewhere(n.at):
		return true, "its job runs the task at endpoint " + n.at + " now"
	}
	return false, "its job runs"
}

// set says what an allocation is.
func (n *nomad) set(id string, a Alloc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.allocs[id] = a
}

// forget has an allocation purged.
func (n *nomad) forget(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.allocs, id)
}

func (n *nomad) because(alloc string, d Decision) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.why[alloc] = d
}

func (n *nomad) quiet(silent bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent = silent
}

// alive is an allocation of a service that is to run.
var alive = Alloc{State: Alive, Wanted: true, Job: endpoint.Service}

// node is a plugin process on a node.
type node struct {
	*Engine
	w      *world
	name   string
	client *memory.Client

	mu     sync.Mutex
	events []string
}

// node starts a plugin. Its tasks are echo, with what edit makes of it.
func (w *world) node(name string, edit ...func(*Task)) *node {
	n := &node{w: w, name: name, client: w.store.Connect()}
	n.Engine = New(Options{
		Endpoint: func(name string) (endpoint.Endpoint, error) {
			switch name {
			case "mem", "alias":
				return n.client, nil
			case "other":
				return w.other.Connect(), nil
			}
			return nil, fmt.Errorf("there is no endpoint %q", name)
		},
		Endpoints: []string{"mem"},
		Task: func(_ context.Context, s *driver.Start) (*Task, error) {
			t := &Task{
				Endpoint: "mem", Address: "192.0.2.1",
				Spec: &endpoint.Spec{
					Task: s.Task.Name, Env: maps.Clone(s.Task.Env), VolatileEnv: []string{"NOMAD_ALLOC_ID"},
					Ports: map[string]int{"http": 80}, Process: &endpoint.Process{Command: "echo"},
				},
				Stop: StopOptions{OnDrain: "release", OnUnknown: "release"},
				Kill: endpoint.Kill{Signal: "SIGTERM", Grace: 5 * time.Second},
			}
			for _, f := range edit {
				f(t)
			}
			return t, nil
		},
		Cluster: w.nomad, Lease: testLease, ReapAfter: 5 * time.Minute, Logger: hclog.NewNullLogger(),
	})
	w.t.Cleanup(func() { n.crash() })
	return n
}

// crash ends the plugin's process: nothing is told to the endpoint.
func (n *node) crash() { _ = n.Close() }

func (n *node) event(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, fmt.Sprintf(format, args...))
}

// said is all events of the node's tasks.
func (n *node) said() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.events, "\n")
}

// config is a new start of an allocation's task.
func (n *node) config(alloc string) *drivers.TaskConfig {
	n.w.count++
	return &drivers.TaskConfig{
		ID: fmt.Sprintf("%s/echo/%08x", alloc, n.w.count), Name: "echo", JobID: "job", TaskGroupName: "group",
		Namespace: "default", AllocID: alloc, NodeID: n.name, AllocDir: filepath.Join(n.w.t.TempDir(), alloc),
		Env: map[string]string{"NOMAD_ALLOC_INDEX": "0", "NOMAD_REGION": "global", "NOMAD_ALLOC_ID": alloc},
	}
}

// start starts an allocation's task.
func (n *node) start(alloc string) (*remoteTask, error) {
	return n.startWith(n.w.t.Context(), n.config(alloc))
}

func (n *node) startWith(ctx context.Context, c *drivers.TaskConfig) (*remoteTask, error) {
	t, err := n.Start(ctx, &driver.Start{Task: c, Event: n.event})
	if err != nil {
		return nil, err
	}
	return t.(*remoteTask), nil
}

// recoverTask recovers what an earlier process of the plugin has saved.
func (n *node) recoverTask(id string, state []byte) (driver.Task, error) {
	return n.Recover(n.w.t.Context(), &drivers.TaskConfig{ID: id}, state, n.event)
}

func (n *node) mustStart(alloc string) *remoteTask {
	n.w.t.Helper()
	n.w.nomad.set(alloc, alive)
	t, err := n.start(alloc)
	must.NoError(n.w.t, err)
	return t
}

// record is the one that there is.
func (w *world) record() *endpoint.Record {
	w.t.Helper()
	list := w.store.Records()
	must.Len(w.t, 1, list)
	return list[0]
}

// running counts the programs that run.
func (w *world) running() (n int) {
	for _, r := range w.store.Runs() {
		if r.To.IsZero() {
			n++
		}
	}
	return n
}

func ended(t *remoteTask) bool {
	synctest.Wait()
	return t.hasEnded()
}
