// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint/memory"
)

// released leaves an object that was given up by alloc-1.
func released(w *world, edit ...func(*Task)) *node {
	a := w.node("a", edit...)
	rt := a.mustStart("alloc-1")
	w.nomad.because("alloc-1", Decision{Action: Release, Reason: "the node is drained"})
	must.NoError(w.t, rt.Stop(w.t.Context(), time.Second, ""))
	w.nomad.set("alloc-1", Alloc{State: Ended, Told: true, Job: endpoint.Service})
	return a
}

func (n *node) reap() []Reaped {
	n.w.t.Helper()
	list, err := n.Reap(n.w.t.Context(), "mem", false)
	must.NoError(n.w.t, err)
	return list
}

func TestReap_ActsOnEvidenceAlone(t *testing.T) {
	gone := func(w *world) { w.nomad.orphans = map[string]string{"job": "its job was purged"} }
	for name, c := range map[string]struct {
		after time.Duration
		edit  func(w *world)
		want  bool
	}{
		"its job runs":                    {after: time.Hour},
		"its job was purged":              {after: time.Hour, edit: gone, want: true},
		"its job was purged just now":     {after: time.Minute, edit: gone},
		"no answer":                       {after: time.Hour, edit: func(w *world) { gone(w); w.nomad.quiet(true) }},
		"its allocation is not known now": {after: time.Hour, edit: func(w *world) { delete(w.nomad.allocs, "alloc-1") }},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := released(w)
				time.Sleep(c.after)
				if c.edit != nil {
					c.edit(w)
				}
				list := a.reap()
				must.Len(t, 1, list)
				test.Eq(t, c.want, list[0].Gone, test.Sprint(list[0].Reason))
				test.NotEq(t, "", list[0].Reason)
				if c.want {
					test.SliceEmpty(t, w.store.Records())
					test.Eq(t, 0, w.running())
					test.Eq(t, "SIGTERM", w.store.Runs()[0].Signals[0])
				} else {
					test.Eq(t, endpoint.Released, w.record().State)
				}
			})
		})
	}
}

func TestReap_EndsWhatALostNodeLeft(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.mustStart("alloc-1")
		w.nomad.orphans = map[string]string{"job": "its job is stopped"}
		time.Sleep(time.Hour)
		test.False(t, b.reap()[0].Gone, test.Sprint("it has an owner"))
		a.crash()
		time.Sleep(testLease + time.Minute)
		test.False(t, b.reap()[0].Gone, test.Sprint("its lease ran out a minute ago"))
		time.Sleep(5 * time.Minute)
		test.True(t, b.reap()[0].Gone)
		test.SliceEmpty(t, w.store.Records())
	})
}

func TestReap_KeepsTheOrphanTimeout(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := released(w, func(t *Task) { t.Orphan = 2 * time.Minute })
		w.nomad.quiet(true)
		time.Sleep(time.Minute)
		test.False(t, a.reap()[0].Gone)
		time.Sleep(time.Minute)
		list := a.reap()
		test.True(t, list[0].Gone)
		test.StrContains(t, list[0].Reason, "orphan_timeout is 2m")
		test.SliceEmpty(t, w.store.Records())
	})
}

// A batch task that ends while its node is lost is not run again.
func TestReap_KeepsAnExitForLongerThanAShortOrphanTimeout(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		short := func(t *Task) { t.Orphan = time.Minute }
		a, b := w.node("a", short), w.node("b", short)
		a.mustStart("alloc-1")
		a.crash()
		w.store.Exit(w.record().Name, task.Exit{Code: 3})
		w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true, Job: endpoint.Batch})
		time.Sleep(4 * time.Minute)
		must.False(t, b.reap()[0].Gone)
		second := b.mustStart("alloc-2")
		must.True(t, ended(second))
		test.Eq(t, 3, second.Exit().Code)
		test.Len(t, 1, w.store.Runs())
		b.crash()
		time.Sleep(5 * time.Minute)
		w.nomad.quiet(true)
		test.True(t, w.node("c", short).reap()[0].Gone)
	})
}

func TestReap_LeavesOtherClusters(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		released(w)
		other := w.node("b")
		other.o.Name = "other"
		w.nomad.orphans = map[string]string{"job": "its job was purged"}
		time.Sleep(time.Hour)
		test.SliceEmpty(t, other.reap())
		test.Eq(t, 1, w.running())
	})
}

// Two clusters with regions of the same name, and no names of their own.
func TestReap_LeavesWhatNobodyHereKnows(t *testing.T) {
	for _, named := range []string{"", "one"} {
		inWorld(t, func(t *testing.T, w *world) {
			name := func(n *node) *node { n.o.Name = named; return n }
			a := name(w.node("a"))
			a.mustStart("alloc-1")
			a.crash()
			time.Sleep(time.Hour)

			elsewhere := &nomad{allocs: map[string]Alloc{"alloc-2": alive}, foreign: true}
			b := name(w.node("b", func(t *Task) { t.Spec.Env["VERSION"] = "2" }))
			b.o.Cluster = elsewhere
			_, err := b.start("alloc-2")
			if named != "" {
				must.NoError(t, err, must.Sprint("the name is the proof"))
				return
			}
			must.ErrorContains(t, err, "set the option cluster")
			test.True(t, structs.IsRecoverable(err))
			c := b.config("alloc-2")
			must.NoError(t, b.client.Create(t.Context(), &endpoint.Record{
				Name: "nomad-2", Key: w.record().Key, Owner: endpoint.Owner{Alloc: "alloc-2", TaskID: c.ID},
			}))
			_, err = b.client.Start(t.Context(), endpoint.Ref{Name: "nomad-2", Epoch: 1}, &endpoint.Spec{})
			must.NoError(t, err)
			for _, r := range b.reap() {
				test.False(t, r.Gone, test.Sprint(r.Reason))
			}
			test.Eq(t, 2, w.running())
		})
	}
}

func TestReap_RemovesLeftovers(t *testing.T) {
	for name, c := range map[string]struct {
		told bool // in the record
		says Alloc
		want bool
	}{
		"told":                        {told: true, want: true},
		"Nomad knows":                 {says: Alloc{State: Ended, Told: true}, want: true},
		"its owner is lost":           {says: Alloc{State: Ended, Lost: true}},
		"nobody knows, and no answer": {},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.node("a")
				rt := a.mustStart("alloc-1")
				w.store.Exit(w.record().Name, task.Exit{Code: 3})
				must.True(t, ended(rt))
				if c.told {
					rt.Told(t.Context())
				}
				a.crash()
				w.nomad.set("alloc-1", c.says)
				time.Sleep(time.Hour)
				test.Eq(t, c.want, w.node("b").reap()[0].Gone)
			})
		})
	}
}

func TestReap_EndsWhatAnotherHasReplaced(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b", func(t *Task) { t.Spec.Env["VERSION"] = "2" })
		a.mustStart("alloc-1")
		w.nomad.set("alloc-2", Alloc{State: Alive, Wanted: true, Canary: true, Job: endpoint.Service})
		_, err := b.start("alloc-2")
		must.NoError(t, err)
		must.Eq(t, 2, w.running())
		a.crash() // and before another allocation replaced it, the canary was promoted
		w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true})
		time.Sleep(time.Hour)
		b.reap()
		must.Eq(t, 2, w.running(), must.Sprint("not promoted"))
		w.nomad.set("alloc-2", alive)
		b.reap()
		must.Eq(t, 1, w.running())
		must.Eq(t, "alloc-2", w.record().Owner.Alloc)
	})
}

func TestReap_GoesOnWithAnEndThatWasBegun(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := released(w)
		w.store.Stubborn = true
		w.nomad.orphans = map[string]string{"job": "its job is stopped"}
		time.Sleep(time.Hour)
		done := make(chan []Reaped)
		go func() { done <- a.reap() }()
		time.Sleep(time.Second) // within the grace
		a.client.Cut(true)
		list := <-done
		must.Error(t, list[0].Err)
		must.Eq(t, 1, w.running())
		b := w.node("b")
		test.False(t, b.reap()[0].Gone, test.Sprint("another one is about to end it"))
		time.Sleep(testLease)
		test.True(t, b.reap()[0].Gone)
		test.SliceEmpty(t, w.store.Records())
	})
}

func TestReaper_ComesByItself(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		released(w)
		w.nomad.orphans = map[string]string{"job": "its job is stopped"}
		b := w.node("b")
		o := b.o
		o.ReapEvery = time.Minute
		reaping := New(o)
		time.Sleep(8 * time.Minute)
		synctest.Wait()
		test.SliceEmpty(t, w.store.Records())
		must.NoError(t, reaping.Close())
	})
}

func TestReap_EndsWhatAStopDidNotReach(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.mustStart("alloc-1")
		a.crash()
		w.nomad.set("alloc-1", Alloc{State: Ended, Job: endpoint.Service})
		time.Sleep(testLease + 6*time.Minute)
		test.False(t, b.reap()[0].Gone, test.Sprint("its replacement takes it over"))
		w.nomad.set("alloc-1", Alloc{State: Ended, Stopped: true, Job: endpoint.Service})
		test.True(t, b.reap()[0].Gone)
		test.Eq(t, 0, w.running())
	})
}

// The questions that come before an end may take minutes, and the owner comes back meanwhile.
func TestReap_LooksAgainBeforeItEnds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a", func(t *Task) { t.Orphan = time.Minute }), w.node("b")
		a.mustStart("alloc-1")
		a.client.Cut(true)
		time.Sleep(testLease + 2*time.Minute)
		back := false
		b.client.Break(func(method string) (f memory.Fault) {
			if method == "Get" && !back {
				back = true
				a.client.Cut(false)
				f.Delay = testLease
			}
			return f
		})
		test.False(t, b.reap()[0].Gone)
		test.Eq(t, 1, w.running())
		must.True(t, back)
		a.client.Cut(true)
		time.Sleep(testLease + 2*time.Minute)
		test.True(t, b.reap()[0].Gone, test.Sprint("it is away again"))
	})
}

// A job moves to another endpoint while its task here has no owner.
func TestReap_EndsWhatRunsElsewhereNow(t *testing.T) {
	for at, want := range map[string]bool{"other": true, "mem": false, "alias": false, "unknown": false} {
		t.Run(at, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := released(w)
				w.nomad.at = at
				time.Sleep(time.Minute)
				test.False(t, a.reap()[0].Gone)
				time.Sleep(5 * time.Minute)
				test.Eq(t, want, a.reap()[0].Gone)
				test.Eq(t, want, w.running() == 0)
			})
		})
	}
}
