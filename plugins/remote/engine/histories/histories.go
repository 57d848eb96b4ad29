// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package histories runs random operations on an endpoint by three nodes: starts, stops,
// drains, restarts, losses and returns of nodes, crashes of agents and plugins, cut links,
// servers that do not answer, steps of the endpoint's clock, reapers. Each node has an engine
// and an agent that does with a task what Nomad's does. Then it judges:
//
//   - the ownership of each object is linearizable, as porcupine finds;
//   - never do two copies of a task run;
//   - the reaper ends nothing that is wanted, and leaves nothing that is not.
package histories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// Options are what a history runs on.
type Options struct {
	Seed       uint64
	Operations int
	Name       string // of the cluster: objects of others are left alone
	Lease      time.Duration

	// Late: a call without an answer may have its effect after it has returned.
	Late bool

	// Endpoint returns a node's own connection.
	Endpoint func(node int) endpoint.Endpoint

	// Spec is what a job runs: a program that goes on until it gets SIGTERM, or Exit.
	Spec func(job string) *endpoint.Spec

	Cut  func(node int, off bool)      // cuts a node off from the endpoint
	Exit func(object string, code int) // ends a program
	Runs func(job string) []Ran        // all runs of programs of a job

	// The rest may be nil.
	Step  func(d time.Duration)           // steps the endpoint's clock
	Fault func(node int, unreliable bool) // loses requests and answers of a node
}

// Ran is a run of a program.
type Ran struct {
	From, To time.Time  // To is zero while it runs
	Exit     *task.Exit // nil while it runs
}

// nodes and jobs of a history.
const (
	nodes = 3
	jobs  = 4
)

type run struct {
	t      testing.TB
	o      Options
	dir    string
	server *server
	agents []*agent
	random *rand.Rand
	h      *history

	sent int // late calls

	mu      sync.Mutex
	restart map[string]chan struct{} // by allocation
	log     []string
}

// Run runs a history and judges it.
func Run(t testing.TB, o Options) {
	t.Helper()
	r := &run{
		t: t, o: o, dir: t.TempDir(), random: rand.New(rand.NewPCG(o.Seed, 14)), h: &history{},
		server:  &server{allocs: map[string]*alloc{}, silent: map[string]bool{}},
		restart: map[string]chan struct{}{},
	}
	for i := range jobs {
		r.newJob(i)
	}
	for i := range nodes {
		a := &agent{
			run: r, name: fmt.Sprint("node-", i), handles: map[string]handle{}, known: map[string]*alloc{},
			ep: &recorder{o.Endpoint(i), r.h, i},
		}
		r.agents = append(r.agents, a)
		a.boot()
	}
	for range o.Operations {
		r.step()
	}
	r.settle()
	r.judge()
}

// newJob registers a job in a place; every second one is a batch job. Histories that share an engine have jobs of their
// own: a task that another cluster runs there under the same name is refused.
func (r *run) newJob(place int) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	j := &job{name: fmt.Sprintf("job-%d-%d-%d", r.o.Seed, place, len(r.server.jobs)), kind: endpoint.Service}
	if place%2 == 1 {
		j.kind = endpoint.Batch
	}
	r.server.jobs = append(r.server.jobs, j)
}

// current are the jobs that are not over.
func (r *run) current() (list []*job) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	for _, j := range r.server.jobs {
		if !j.purged && !j.done {
			list = append(list, j)
		}
	}
	return list
}

// step is a random operation, and some time.
func (r *run) step() {
	node := r.random.IntN(nodes)
	a := r.agents[node]
	list := r.current()
	if len(list) < jobs {
		r.newJob(r.random.IntN(jobs))
		list = r.current()
	}
	j := list[r.random.IntN(len(list))]
	if r.random.IntN(4) == 0 {
		r.late()
	}
	switch op := r.random.IntN(100); {
	case op < 28:
		r.place()
	case op < 31:
		r.server.disconnect(a.name)
	case op < 35:
		r.server.reconnect(a.name)
		if r.random.IntN(2) == 0 { // its agent was restarted as well
			a.kill()
			a.boot()
		}
		r.pass(r.o.Lease / 4)
		r.server.reconcile(r.random.IntN(6))
	case op < 40:
		r.server.stop(j, engine.Decision{Action: engine.Release, Reason: "the node is drained"})
	case op < 43:
		r.server.mu.Lock()
		j.version, j.again = j.version+1, true
		r.server.mu.Unlock()
		r.server.stop(j, engine.Decision{Action: engine.Stop, Reason: "the job was updated"})
	case op < 46:
		r.server.stop(j, engine.Decision{Action: engine.Stop, Reason: "the allocation was stopped by hand"})
	case op < 52:
		r.restartOne(a)
	case op < 56:
		r.server.lose(a.name)
	case op < 63:
		a.kill()
		if r.random.IntN(2) == 0 {
			r.server.lose(a.name)
		}
		r.pass(r.o.Lease / 4)
		a.boot()
	case op < 70:
		r.o.Cut(node, r.random.IntN(2) == 0)
	case op < 75:
		r.server.hush(a.name, r.random.IntN(3) == 0)
	case op < 79:
		if r.o.Fault != nil {
			r.o.Fault(node, r.random.IntN(2) == 0)
		}
	case op < 86:
		r.exit()
	case op < 88:
		if r.o.Step != nil {
			r.o.Step(time.Duration(r.random.Int64N(int64(2*r.o.Lease))) - r.o.Lease)
		}
	case op < 90:
		r.server.mu.Lock()
		j.purged = true
		r.server.mu.Unlock()
		r.server.stop(j, engine.Decision{Action: engine.Stop, Reason: "the job was purged"})
	default:
		r.reap(a)
	}
	r.pass(r.o.Lease / 4)
}

// late has nodes send what an owner of a moment ago meant to send, as one that was frozen meanwhile does. All of it
// must be refused: the judge of the history would see it.
func (r *run) late() {
	old := r.h.superseded()
	if len(old) == 0 {
		return
	}
	ref, call := old[len(old)-1-r.random.IntN(min(len(old), 3))], r.random.IntN(5)
	for _, a := range r.agents { // some are cut off
		ctx, cancel := context.WithTimeout(r.t.Context(), r.o.Lease)
		r.sent++
		switch call {
		case 0:
			_ = a.ep.Renew(ctx, ref, endpoint.Mutable{})
		case 1:
			_ = a.ep.Release(ctx, ref, endpoint.Mutable{}, "late")
		case 2:
			_, _ = a.ep.Stop(ctx, ref, "SIGKILL", 0, "late")
		case 3:
			_ = a.ep.Remove(ctx, ref)
		default:
			_, _ = a.ep.Take(ctx, ref, endpoint.Owner{TaskID: "late"})
		}
		cancel()
	}
}

// pass lets up to d of time pass, or none.
func (r *run) pass(d time.Duration) {
	if r.random.IntN(3) > 0 {
		time.Sleep(time.Duration(r.random.Int64N(int64(d))))
	}
}

// place has every job run that has no allocation.
func (r *run) place() {
	for _, j := range r.current() {
		a := r.agents[r.random.IntN(nodes)]
		if al := r.server.place(j, a.name); al != nil {
			a.add(al)
		}
	}
}

func (r *run) restarts(al *alloc) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.restart[al.id] == nil {
		r.restart[al.id] = make(chan struct{})
	}
	return r.restart[al.id]
}

func (r *run) restartOne(a *agent) {
	for _, al := range a.allocs() {
		select {
		case r.restarts(al) <- struct{}{}:
			return
		default: // it does not run, or is restarted
		}
	}
}

// exit ends a program that runs, by itself.
func (r *run) exit() {
	for _, a := range r.agents { // some are cut off
		list, err := a.ep.(*recorder).Endpoint.List(r.t.Context())
		if err != nil {
			continue
		}
		list = slices.DeleteFunc(list, func(o *endpoint.Record) bool {
			return o.State != endpoint.Running && o.State != endpoint.Released || o.Key.Cluster != r.o.Name
		})
		if len(list) > 0 {
			r.o.Exit(list[r.random.IntN(len(list))].Name, r.random.IntN(2))
		}
		return
	}
}

// reap looks for what nobody wants. What it ends must be of a job that is over, unless it was
// told or its end was begun.
func (r *run) reap(a *agent) {
	list, err := a.engine.Reap(r.t.Context(), "it", false)
	if err != nil {
		return // not reached
	}
	for _, d := range list {
		over := r.server.isOrphan(d.Record.Key.Job, "")
		leftover := d.Record.State == endpoint.Exited || strings.HasPrefix(d.Record.Owner.TaskID, "ending/")
		if d.Gone && d.Err == nil && !over && !leftover {
			r.t.Errorf("the reaper ended %s, which is wanted: %s", d.Record.Key, d.Reason)
		}
	}
}

func (r *run) event(a *agent, al *alloc) func(format string, args ...any) {
	return func(format string, args ...any) {
		r.mu.Lock()
		defer r.mu.Unlock()
		at := time.Now().Format(time.TimeOnly)
		r.log = append(r.log, fmt.Sprintf("%s %s %s: %s", at, a.name, al.id, fmt.Sprintf(format, args...)))
	}
}

// spec is a job's, in its current version.
func (r *run) spec(name string) *endpoint.Spec {
	s := r.o.Spec(name)
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	for _, j := range r.server.jobs {
		if j.name == name {
			s.Env["VERSION"] = fmt.Sprint(j.version)
		}
	}
	return s
}

// settle connects everything, stops every job, and lets the reaper pass.
func (r *run) settle() {
	for i, a := range r.agents {
		r.o.Cut(i, false)
		if r.o.Fault != nil {
			r.o.Fault(i, false)
		}
		r.server.hush(a.name, false)
		r.server.reconnect(a.name)
	}
	for _, j := range r.current() {
		r.server.mu.Lock()
		j.purged = true
		r.server.mu.Unlock()
		r.server.stop(j, engine.Decision{Action: engine.Stop, Reason: "the job was purged"})
	}
	time.Sleep(3 * r.o.Lease)
	for range 2 {
		for _, a := range r.agents {
			r.reap(a)
		}
		time.Sleep(r.o.Lease / 2)
	}
	for _, a := range r.agents {
		a.kill()
	}
}

// judge looks at what is left, and at the history.
func (r *run) judge() {
	r.t.Helper()
	list, err := r.agents[0].ep.List(r.t.Context())
	must.NoError(r.t, err)
	for _, left := range list {
		if left.Key.Cluster == r.o.Name {
			r.t.Errorf("%s is left behind in state %s: %+v", left.Key, left.State, left)
		}
	}
	runs, succeeded := 0, 0
	for _, j := range r.server.jobs {
		n, good := r.judgeRuns(j)
		runs, succeeded = runs+n, succeeded+good
	}
	if runs == 0 {
		r.t.Error("no program ran")
	}
	results := map[string]int{}
	for _, op := range r.h.ops {
		results[op.Output.(output).result]++
	}
	if r.sent > 0 && results["epoch"]+results["gone"] == 0 {
		r.t.Errorf("none of %d late calls was refused", r.sent)
	}
	all := slices.DeleteFunc(r.h.ops, func(op porcupine.Operation) bool { // from these nothing follows
		return op.Output.(output).result == "unknown" && !op.Input.(input).changesOwner()
	})
	if r.o.Late {
		for i, op := range all {
			if op.Output.(output).result == "unknown" {
				all[i].Return = r.h.clock + 1
			}
		}
	}
	for _, ops := range model.Partition(all) {
		result, _ := porcupine.CheckOperationsVerbose(model.ToModel(), ops, time.Minute)
		if result == porcupine.Ok {
			continue
		}
		r.t.Errorf("ownership of %s is not linearizable (seed %d): %s", ops[0].Input.(input).ref.Name, r.o.Seed, result)
		for _, op := range ops {
			r.t.Logf("%d-%d node %d: %s", op.Call, op.Return, op.ClientId, model.DescribeOperation(op.Input, op.Output))
		}
	}
	r.t.Logf("seed %d: %d operations, %d allocations, %d runs of which %d succeeded, calls that have to do with "+
		"ownership by their result: %v", r.o.Seed, r.o.Operations, r.server.count, runs, succeeded, results)
}

// tell prints what happened to a job.
func (r *run) tell(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.log {
		if strings.Contains(line, j.name+":") {
			r.t.Log(line)
		}
	}
}

// judgeRuns looks for two copies, and for a batch job that ran again after it had succeeded. It counts the runs.
func (r *run) judgeRuns(j *job) (runs, good int) {
	all := r.o.Runs(j.name)
	for i, a := range all {
		if succeeded(a.Exit) {
			good++
		}
		for _, b := range all[:i] {
			if (b.To.IsZero() || a.From.Before(b.To)) && (a.To.IsZero() || b.From.Before(a.To)) {
				r.t.Errorf("two copies of %s ran at the same time: %+v and %+v", j.name, b, a)
				r.tell(j)
			}
			if j.kind == endpoint.Batch && !j.again && succeeded(b.Exit) {
				r.t.Errorf("batch job %s ran again after it had succeeded: %+v and %+v", j.name, b, a)
				r.tell(j)
			}
		}
	}
	return len(all), good
}
