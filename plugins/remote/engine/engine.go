// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package engine runs tasks as objects of an endpoint. It decides, at each start, stop,
// recovery and removal, and in the reaper, whose an object is and what becomes of it: by its
// record there and by what Nomad's API says of the allocations.
//
// An object is found again by the names of its task and owned by compare-and-set of an epoch,
// so nothing here depends on what one node remembers. Without the API the owner's lease
// decides. Where neither tells, an object is left alone.
package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Options configure an Engine.
type Options struct {
	// Endpoint returns an endpoint by its name, without connecting to it. Its error is shown to a
	// person. The caller of New closes the endpoints, after the engine.
	Endpoint  func(name string) (endpoint.Endpoint, error)
	Endpoints []string // the names of all, for the reaper

	// Task is how a task is run, from its decoded configuration.
	Task func(ctx context.Context, s *driver.Start) (*Task, error)

	Cluster Cluster
	Name    string        // of the cluster, part of every key
	Lease   time.Duration // as the endpoints have it

	Node      string        // this one's, for the records of what the reaper ends
	ReapEvery time.Duration // between two looks of the reaper, 0: it does not run
	ReapAfter time.Duration // how long an object must have had no owner before the reaper ends it

	Logger hclog.Logger
}

// Task is how a task is run.
type Task struct {
	Endpoint string
	Address  string // where its ports are reached if the record does not tell
	MaxTasks int    // of the endpoint, 0 for any number

	// Spec is as the job has it: the engine replaces paths, drops the agent's own variables,
	// and computes the hash.
	Spec *endpoint.Spec

	Stop    StopOptions
	Restart bool // on_lost: what runs without an owner is ended and started again
	Orphan  time.Duration
	Kill    endpoint.Kill
}

// Engine is a driver.Engine whose tasks run at endpoints.
type Engine struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup // of every goroutine

	mu     sync.Mutex
	closed bool
	tasks  map[string]*remoteTask   // by id
	starts map[string]chan struct{} // by run: a start under way, closed at its end
	told   map[string]bool          // ids of tasks whose exit Nomad was told, until they are removed
	unseen map[string]bool          // by run: an object was its, and this process did not see it end
	ends   map[place]*pending       // what is to be ended and could not be reached
	away   map[string]time.Time     // by endpoint: when a recovery could not reach it
}

var _ driver.Engine = (*Engine)(nil)

// New returns an engine. Its reaper runs until Close.
func New(o Options) *Engine {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Engine{
		o: o, ctx: ctx, cancel: cancel,
		tasks: map[string]*remoteTask{}, starts: map[string]chan struct{}{},
		told: map[string]bool{}, unseen: map[string]bool{}, ends: map[place]*pending{}, away: map[string]time.Time{},
	}
	if o.ReapEvery > 0 {
		for _, name := range o.Endpoints {
			e.spawn(func() { e.reapAlways(ctx, name) })
		}
	}
	return e
}

// Close ends all goroutines of the engine, and waits for them. Objects run on, and endpoints stay open.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.cancel()
	e.group.Wait()
	return nil
}

// spawn calls f in a goroutine that Close waits for, unless the engine is closed already.
func (e *Engine) spawn(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.group.Go(f)
	}
}

// Start is part of driver.Engine. It creates an object, or takes over one that another
// allocation of the same name has left.
func (e *Engine) Start(ctx context.Context, s *driver.Start) (driver.Task, error) {
	want, err := e.o.Task(ctx, s)
	if err != nil {
		return nil, err
	}
	ep, err := e.o.Endpoint(want.Endpoint)
	if err != nil {
		return nil, err
	}
	key, err := e.key(s.Task)
	if err != nil {
		return nil, err
	}
	p, err := newPayload(ctx, want, s.Task, os.Environ())
	if err != nil {
		return nil, err
	}
	release, err := e.alone(ctx, runOf(s.Task.AllocID, s.Task.Name))
	if err != nil {
		return nil, err
	}
	defer release()
	e.supersede(s.Task.AllocID, s.Task.Name)
	t := &remoteTask{
		engine: e, ep: ep, finishing: make(chan struct{}, 1), event: briefly(s.Event),
		saved: saved{
			Endpoint: want.Endpoint, Address: want.Address, Ports: want.Spec.Ports, Key: key, Hash: p.hash,
			Owner: endpoint.Owner{Alloc: s.Task.AllocID, Node: s.Task.NodeID, TaskID: s.Task.ID},
			Asker: asker(s.Task), Stop: want.Stop, Kill: want.Kill,
			Dirs: p.dirs, Output: outputOf(s.Task, want.Spec),
		},
	}
	r, err := (&start{task: t, want: want, payload: p}).run(ctx)
	if err != nil {
		return nil, err
	}
	t.ctx, t.cancel = context.WithCancel(e.ctx)
	t.begin(r)
	e.hold(t)
	return t, nil
}

// Recover is part of driver.Engine. It also succeeds if the endpoint can't be reached: the task
// learns who owns the object when it can.
func (e *Engine) Recover(
	ctx context.Context, c *drivers.TaskConfig, state []byte, event driver.Event,
) (driver.Task, error) {
	t, err := e.load(c, state, briefly(event))
	if err != nil {
		return nil, err
	}
	return t, t.recover(ctx)
}

// Destroy is part of driver.Engine. It kills nothing: it removes an object that has ended,
// that this process owns, and whose exit it saw told. Everything else is the next owner's,
// or the reaper's.
func (e *Engine) Destroy(ctx context.Context, id string) error {
	e.mu.Lock()
	t := e.tasks[id]
	delete(e.tasks, id)
	e.mu.Unlock()
	if t != nil {
		t.destroy(ctx)
	}
	return nil
}

// key is that of a task's object, without the node of a system job: only the API tells that
// a job is one.
func (e *Engine) key(c *drivers.TaskConfig) (endpoint.Key, error) {
	text := c.Env[taskenv.AllocIndex]
	index, err := strconv.Atoi(text)
	if err != nil || index < 0 {
		return endpoint.Key{}, fmt.Errorf("failed to name the task: %s is %q in its environment", taskenv.AllocIndex, text)
	}
	// a job's own variables hide Nomad's, and the index tells whether the job has a place for the task
	if name := c.Env[taskenv.AllocName]; name != "" && !strings.HasSuffix(name, "["+text+"]") {
		return endpoint.Key{}, fmt.Errorf("failed to name the task: %s is %q in its environment, and the allocation is %s: "+
			"the job or a template sets a variable of Nomad's", taskenv.AllocIndex, text, name)
	}
	return endpoint.Key{
		Cluster: e.o.Name, Region: c.Env["NOMAD_REGION"], Namespace: c.Namespace,
		Job: c.JobID, Group: c.TaskGroupName, Task: c.Name, Index: index,
	}, nil
}

// identityVariable has the workload identity of a task with identity { env = true }.
const identityVariable = "NOMAD_TOKEN"

func asker(c *drivers.TaskConfig) Asker {
	return Asker{
		Namespace: c.Namespace, Job: c.JobID, Alloc: c.AllocID, Node: c.NodeID, Task: c.Name,
		Token: c.Env[identityVariable], Secrets: c.TaskDir().SecretsDir,
	}
}

// alloc looks at the allocation of an owner of an object that has the engine's cluster in its
// key. If that is a name, it is the proof that the object is this cluster's.
func (e *Engine) alloc(ctx context.Context, a Asker, o endpoint.Owner) Alloc {
	got := e.o.Cluster.Alloc(ctx, a, o)
	if got.State == Foreign && e.o.Name != "" {
		got.State = NotFound
	}
	return got
}

// alone waits until no other start of this name is under way in this process: of the same
// allocation's task, by an agent that was killed.
func (e *Engine) alone(ctx context.Context, name string) (release func(), err error) {
	for {
		e.mu.Lock()
		other := e.starts[name]
		if other == nil {
			mine := make(chan struct{})
			e.starts[name] = mine
			e.mu.Unlock()
			return func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				delete(e.starts, name)
				close(mine)
			}, nil
		}
		e.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-e.ctx.Done():
			return nil, errClosed
		}
	}
}

var errClosed = errors.New("the plugin ends")

// supersede ends earlier starts of an allocation's task that still run in this process. The agent that asked for
// them was killed before it got an answer.
func (e *Engine) supersede(alloc, name string) {
	var earlier []*remoteTask
	e.mu.Lock()
	for id, t := range e.tasks {
		if t.saved.Owner.Alloc == alloc && t.saved.Key.Task == name && !t.hasEnded() {
			earlier = append(earlier, t)
			delete(e.tasks, id)
		}
	}
	e.mu.Unlock()
	for _, t := range earlier {
		t.endWith(&task.Exit{Lost: true, Reason: "the allocation's task was started again, and has it"})
	}
}

func (e *Engine) hold(t *remoteTask) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tasks[t.saved.Owner.TaskID] = t
}

// wasTold reports whether this process saw Nomad take the exit of a task.
func (e *Engine) wasTold(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.told[id]
}

// runOf names what the starts of an allocation's task have in common.
func runOf(alloc, task string) string { return alloc + "/" + task }

// sees records whether this process saw the end of the object of an allocation's task. If it did not,
// another allocation may have taken the object over, reported how it ended, and removed it.
func (e *Engine) sees(run string, end bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if end {
		delete(e.unseen, run)
	} else {
		e.unseen[run] = true
	}
}

func (e *Engine) hasUnseen(run string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unseen[run]
}

// unfinished are the objects of an endpoint that a stop could not reach.
func (e *Engine) unfinished(endpoint string) (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for at := range e.ends {
		if at.endpoint == endpoint {
			names = append(names, at.object)
		}
	}
	return names
}

// recoverable makes an error after which Nomad starts the task again, by its restart block.
func recoverable(format string, args ...any) error {
	return structs.NewRecoverableError(fmt.Errorf(format, args...), true)
}
