// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint/memory"
)

// A node is cut off from Nomad's servers, not from the endpoint. Another one takes its batch task over, and that ends,
// is told and removed. Whatever becomes of the plugin there, it does not run the task again.
func TestStart_RunsNothingAgainThatAnotherNodeMayHaveEnded(t *testing.T) {
	for name, c := range map[string]struct {
		before, after func(t *testing.T, a *node, rt *remoteTask) *node
	}{
		"the plugin is killed": {
			before: func(_ *testing.T, a *node, _ *remoteTask) *node { a.crash(); return a },
			after: func(t *testing.T, a *node, rt *remoteTask) *node {
				state, err := rt.Saved()
				must.NoError(t, err)
				again := a.w.node("a")
				_, err = again.recoverTask(rt.saved.Owner.TaskID, state)
				must.ErrorContains(t, err, "is not at endpoint mem any more")
				return again
			},
		},
		"the endpoint was out of reach": {
			before: func(_ *testing.T, a *node, _ *remoteTask) *node { a.client.Cut(true); return a },
			after: func(t *testing.T, a *node, rt *remoteTask) *node {
				a.client.Cut(false)
				time.Sleep(5 * testLease)
				must.True(t, ended(rt))
				test.True(t, rt.Exit().Lost)
				return a
			},
		},
		"the task is restarted": {
			after: func(t *testing.T, a *node, rt *remoteTask) *node {
				must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
				must.True(t, ended(rt))
				return a
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				cut := &world{t: t, store: w.store, nomad: &nomad{allocs: map[string]Alloc{}, silent: true}}
				a, b := cut.node("a"), w.node("b")
				first, err := a.start("alloc-1")
				must.NoError(t, err)
				if c.before != nil {
					a = c.before(t, a, first)
				}
				w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true})
				second := b.mustStart("alloc-2")
				w.store.Exit(w.record().Name, task.Exit{})
				must.True(t, ended(second))
				second.Told(t.Context())
				must.NoError(t, b.Destroy(t.Context(), second.saved.Owner.TaskID))
				must.SliceEmpty(t, w.store.Records())

				a = c.after(t, a, first)
				must.NoError(t, a.Destroy(t.Context(), first.saved.Owner.TaskID))
				for range 2 {
					_, err = a.start("alloc-1")
					must.ErrorContains(t, err, "did not see it end")
					test.True(t, structs.IsRecoverable(err))
				}
				test.Len(t, 1, w.store.Runs())

				cut.nomad.quiet(false) // it is connected again, and Nomad wants the allocation
				a.mustStart("alloc-1")
				test.Len(t, 2, w.store.Runs())
			})
		})
	}
}

// Without the API a task that this process saw end is run again: a restart policy says so.
func TestStart_RunsAgainWhatItSawEnd(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, a *node, rt *remoteTask){
		"it ended": func(t *testing.T, a *node, rt *remoteTask) {
			a.w.store.Exit(a.w.record().Name, task.Exit{Code: 1})
			must.True(t, ended(rt))
			rt.Told(t.Context())
		},
		"it was stopped": func(t *testing.T, _ *node, rt *remoteTask) {
			must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
			rt.Told(t.Context())
		},
		"it could not be stopped, and was later": func(t *testing.T, a *node, rt *remoteTask) {
			a.client.Cut(true)
			must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
			test.True(t, rt.Exit().Lost)
			a.client.Cut(false)
			time.Sleep(time.Minute)
			test.SliceEmpty(t, a.w.store.Records())
		},
		"it could not be stopped": func(t *testing.T, a *node, rt *remoteTask) {
			a.client.Cut(true)
			must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
			a.client.Cut(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.nomad.quiet(true)
				a := w.node("a", func(t *Task) { t.Stop.OnUnknown = "stop" })
				rt, err := a.start("alloc-1")
				must.NoError(t, err)
				end(t, a, rt)
				must.NoError(t, a.Destroy(t.Context(), rt.saved.Owner.TaskID))
				_, err = a.start("alloc-1")
				must.NoError(t, err)
				test.Len(t, 2, w.store.Runs())
				test.Eq(t, 1, w.running())
			})
		})
	}
}

// A batch task ends while another allocation waits for it. Nomad learns of that a moment later, or can't be asked.
func TestStart_RunsNothingAgainThatEndedWhileItWaited(t *testing.T) {
	job := Alloc{State: Alive, Wanted: true, Job: endpoint.Batch}
	for name, c := range map[string]struct {
		silent bool
		first  Alloc // when its task has ended
		want   string
	}{
		"no answer":           {silent: true, want: "may have run it to its end"},
		"not known yet":       {first: job, want: "Nomad does not tell yet how it ended"},
		"its node is lost":    {first: Alloc{State: Ended, Lost: true, Job: endpoint.Batch}, want: "Nomad does not tell yet"},
		"and is to run again": {first: Alloc{State: Ended, Job: endpoint.Batch}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				quiet := &world{t: t, store: w.store, nomad: &nomad{allocs: map[string]Alloc{}, silent: c.silent}}
				a, b := w.node("a"), quiet.node("b")
				w.nomad.set("alloc-1", job)
				quiet.nomad.set("alloc-1", job)
				quiet.nomad.set("alloc-2", job)
				first, err := a.start("alloc-1")
				must.NoError(t, err)
				started := make(chan error)
				go func() {
					_, err := b.start("alloc-2")
					started <- err
				}()
				time.Sleep(5 * time.Second)
				must.StrContains(t, b.said(), "Waiting")

				w.store.Exit(w.record().Name, task.Exit{})
				must.True(t, ended(first))
				first.Told(t.Context())
				must.NoError(t, a.Destroy(t.Context(), first.saved.Owner.TaskID))
				quiet.nomad.set("alloc-1", c.first)
				err = <-started
				if c.want == "" {
					must.NoError(t, err)
					return
				}
				must.ErrorContains(t, err, c.want)
				test.True(t, structs.IsRecoverable(err))
				test.Len(t, 1, w.store.Runs())
				_, err = b.start("alloc-2") // Nomad has had the time to say that it is not wanted
				must.NoError(t, err)
			})
		})
	}
}

// Two configurations of a task have objects of two names, so that two starts may create both at the same time.
func TestStart_RunsOneOfTwoConfigurations(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		slow := func(string) memory.Fault { return memory.Fault{Delay: time.Second} }
		for _, n := range []*node{w.node("a"), w.node("b", func(t *Task) { t.Spec.Env["VERSION"] = "2" })} {
			n.client.Break(slow)
			w.nomad.set("alloc-"+n.name, alive)
			go func() { _, _ = n.start("alloc-" + n.name) }()
		}
		time.Sleep(testLease)
		test.Len(t, 1, w.store.Records())
		test.Len(t, 1, w.store.Runs())
		time.Sleep(time.Hour) // the other start has failed
	})
}
