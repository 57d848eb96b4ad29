// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// The rows are what Nomad 1.11.3 answers: lab/e2e/remote asks real agents for each.
func TestDecide_FollowsNomadsReason(t *testing.T) {
	of := func(kind endpoint.JobType, v Allocation) Answer { return Answer{Job: kind, Alloc: &v} }
	service := func(v Allocation) Answer { return of(endpoint.Service, v) }
	drain := Allocation{Desired: "stop", Client: "running", Because: becauseMigrating, Migrate: true}
	batch := drain
	batch.NoPlacement = true
	tainted := drain
	tainted.Because = becauseTainted
	byHand := drain
	byHand.ByHand = true
	updated := drain // a drain that was ended before it came to this allocation
	updated.Because = becauseUpdating
	lost := Allocation{Desired: "stop", Client: "lost", Because: becauseLost}
	back := lost
	back.Client = "running"
	stopOnDrain := engine.StopOptions{OnDrain: "stop"}
	for _, tc := range []struct {
		name   string
		answer Answer
		o      engine.StopOptions
		want   engine.Action
		reason string
	}{
		{"restart", service(Allocation{Desired: "run", Client: "running"}), engine.StopOptions{}, engine.Stop, "restarted"},
		{"alloc stop", service(byHand), engine.StopOptions{}, engine.Stop, "by hand"},
		{"drain of a service", service(drain), engine.StopOptions{}, engine.Release, "drained"},
		{"drain, on_drain is stop", service(drain), stopOnDrain, engine.Stop, "on_drain is stop"},
		{"drain of a batch", of(endpoint.Batch, batch), engine.StopOptions{}, engine.Stop, "nothing replaces"},
		{"drain of a batch, by its type", of(endpoint.Batch, drain), engine.StopOptions{}, engine.Stop, "nothing replaces"},
		{"drain of a system", of(endpoint.System, tainted), engine.StopOptions{}, engine.Stop, "nothing replaces"},
		{"drain of a sysbatch", of(endpoint.SysBatch, tainted), engine.StopOptions{}, engine.Stop, "nothing replaces"},
		{"drain, then job stop", Answer{Stopped: true, Alloc: &drain}, engine.StopOptions{}, engine.Stop, "job is stopped"},
		{"update", service(updated), engine.StopOptions{}, engine.Stop, "being updated"},
		{"scale down", service(Allocation{Desired: "stop", Client: "running", Because: becauseNotNeeded}),
			engine.StopOptions{}, engine.Stop, "not needed"},
		{"job stop", Answer{Stopped: true, Alloc: &Allocation{Desired: "stop", Because: becauseNotNeeded}},
			engine.StopOptions{}, engine.Stop, "job is stopped"},
		{"job stop -purge", Answer{Purged: true}, engine.StopOptions{}, engine.Stop, "purged"},
		{"purge and a drain", Answer{Purged: true, Alloc: &drain}, engine.StopOptions{}, engine.Stop, "purged"},
		{"purged and registered again", Answer{Job: endpoint.Service}, engine.StopOptions{}, engine.Release, "does not know"},
		{"preemption", service(Allocation{Desired: "evict", Client: "running", Because: "Preempted by alloc ID x"}),
			engine.StopOptions{}, engine.Stop, "preempted"},
		{"reconnect, the replacement loses", service(Allocation{Desired: "stop", Client: "running",
			Because: becauseReconnected}), engine.StopOptions{}, engine.Release, "connected again"},
		{"reconnect, the original loses", service(Allocation{Desired: "stop", Client: "running",
			Because: becauseNotNeeded, Replaced: true}), engine.StopOptions{}, engine.Release, "connected again"},
		{"lost", service(lost), engine.StopOptions{}, engine.NotMine, "lost"},
		{"lost, and back", service(back), engine.StopOptions{}, engine.NotMine, "lost"},
		{"lost, and the job stopped", Answer{Stopped: true, Alloc: &lost}, engine.StopOptions{}, engine.Stop, "is stopped"},
		{"cut off", service(Allocation{Desired: "run", Client: "unknown"}), engine.StopOptions{}, engine.Release, "cut off"},
		{"no answer", Answer{Silence: "it hangs"}, engine.StopOptions{}, engine.Release, "not known: it hangs"},
		{"no answer, release", Answer{Silence: "it hangs"}, engine.StopOptions{OnUnknown: "release"}, engine.Release, "not"},
		{"no answer, stop", Answer{Silence: "it hangs"}, engine.StopOptions{OnUnknown: "stop"}, engine.Stop, "on_unknown"},
	} {
		got := Decide(tc.answer, tc.o)
		test.Eq(t, tc.want, got.Action, test.Sprint(tc.name, ": ", got.Reason))
		test.StrContains(t, got.Reason, tc.reason, test.Sprint(tc.name))
	}
}

func TestReplaced_HasAPlaceInTheSameJob(t *testing.T) {
	job := func(version uint64, count int, disconnects bool) *api.Job {
		g := &api.TaskGroup{Name: new("g"), Count: new(count)}
		if disconnects {
			g.Disconnect = &api.DisconnectStrategy{}
		}
		return &api.Job{Version: new(version), TaskGroups: []*api.TaskGroup{g}}
	}
	alloc := &api.Allocation{Name: "a[b.g[1]", TaskGroup: "g", Job: job(3, 2, true), DesiredDescription: becauseNotNeeded}
	canary, other, strange := *alloc, *alloc, *alloc
	canary.DeploymentStatus = &api.AllocDeploymentStatus{Canary: true}
	other.DesiredDescription = "alloc is being updated due to job update"
	strange.Name = "?"
	for _, tc := range []struct {
		name string
		a    *api.Allocation
		job  *api.Job
		want bool
	}{
		{"reconcile", alloc, job(3, 2, true), true},
		{"a purged job", alloc, nil, false},
		{"another version", alloc, job(4, 2, true), false},
		{"scaled down", alloc, job(3, 1, true), false},
		{"no disconnect block", alloc, job(3, 2, false), false},
		{"no such group", alloc, &api.Job{Version: new(uint64(3))}, false},
		{"a canary of a failed deployment", &canary, job(3, 2, true), false},
		{"another reason", &other, job(3, 2, true), false},
		{"a name without an index", &strange, job(3, 2, true), false},
	} {
		test.Eq(t, tc.want, replaced(tc.a, tc.job), test.Sprint(tc.name))
	}
}

func TestOrphan_NeedsPositiveEvidence(t *testing.T) {
	job := func(kind string, edit func(*api.Job)) *api.Job {
		j := api.NewServiceJob("j", "j", "global", 50)
		j.Type, j.Status, j.Stop = new(kind), new("running"), new(false)
		j.AddTaskGroup(api.NewTaskGroup("g", 2).AddTask(api.NewTask("t", "remote")))
		if edit != nil {
			edit(j)
		}
		return j
	}
	record := func(index int) *endpoint.Record {
		return &endpoint.Record{State: endpoint.Released, Key: endpoint.Key{Job: "j", Group: "g", Task: "t", Index: index}}
	}
	old := record(1)
	old.JobIndex = 5
	first := func(index uint64) func(*api.Job) { return func(j *api.Job) { j.CreateIndex = &index } }
	over := record(1)
	over.State = endpoint.Exited
	dead := func(j *api.Job) { j.Status = new("dead") }
	at := func(endpoint string) func(*api.Job) {
		return func(j *api.Job) { j.TaskGroups[0].Tasks[0].SetConfig("endpoint", endpoint) }
	}
	for _, tc := range []struct {
		name   string
		r      *endpoint.Record
		job    *api.Job
		want   bool
		reason string
	}{
		{"it runs", record(1), job("service", nil), false, "runs"},
		{"it is not placed", record(1), job("service", func(j *api.Job) { j.Status = new("pending") }), false, "runs"},
		{"purged", record(1), nil, true, "purged"},
		{"of the job", old, job("service", first(5)), false, "runs"},
		{"purged, and run again", old, job("service", first(7)), true, "another one has its name"},
		{"of who knows which job", record(1), job("service", first(7)), false, "runs"},
		{"stopped", record(1), job("service", func(j *api.Job) { j.Stop = new(true) }), true, "stopped"},
		{"dead", record(1), job("service", dead), true, "dead"},
		{"a dead batch", record(1), job("batch", dead), false, "runs to its end"},
		{"a dead sysbatch", record(1), job("sysbatch", dead), false, "runs to its end"},
		{"a dead batch, ended", over, job("batch", dead), true, "dead"},
		{"a dead batch, stopped", record(1), job("batch", func(j *api.Job) { dead(j); j.Stop = new(true) }), true, "stopped"},
		{"scaled down", record(2), job("service", nil), true, "count of 2"},
		{"a system job has no count", record(2), job("system", nil), false, "runs"},
		{"another group", record(1), job("service", func(j *api.Job) { j.TaskGroups[0].Name = new("h") }), true, "group g"},
		{"at the endpoint", record(1), job("service", at("this")), false, "runs"},
		{"at another endpoint", record(1), job("service", at("other")), true, "at endpoint other now"},
		{"at one that is none", record(1), job("service", at("${meta.endpoint}")), false, "runs"},
		{"another task", record(1), job("service", func(j *api.Job) { j.TaskGroups[0].Tasks[0].Name = "u" }), true, "task t"},
	} {
		got, reason := orphan(tc.r, tc.job, func(name string) bool { return name == "other" })
		test.Eq(t, tc.want, got, test.Sprint(tc.name))
		test.StrContains(t, reason, tc.reason, test.Sprint(tc.name))
	}
}
