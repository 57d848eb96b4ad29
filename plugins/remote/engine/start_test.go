// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// slow has a node's calls take their time, so that those of several nodes are mixed.
func (n *node) slow(by time.Duration) {
	n.client.Break(func(string) memory.Fault { return memory.Fault{Delay: by} })
}

func TestStart_KeepsMaxTasks(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var group sync.WaitGroup
		var started atomic.Int32
		for i := range 6 {
			n := w.node(fmt.Sprint("node-", i), func(t *Task) { t.MaxTasks = 2 })
			n.slow(time.Duration(10+i) * time.Millisecond)
			c := n.config(fmt.Sprint("alloc-", i))
			c.JobID = fmt.Sprint("job-", i)
			w.nomad.set(c.AllocID, alive)
			group.Go(func() {
				if _, err := n.startWith(t.Context(), c); err == nil {
					started.Add(1)
				} else if !structs.IsRecoverable(err) {
					t.Errorf("not to be tried again: %v", err)
				}
			})
		}
		group.Wait()
		test.Eq(t, 2, started.Load())
		test.Eq(t, 2, w.running())
		test.Len(t, 2, w.store.Records())
	})
}

// An agent that was killed during StartTask asks another plugin, while the call of the first goes on.
func TestStart_OfOneAllocationTwiceRunsOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.nomad.set("alloc-1", alive)
		var group sync.WaitGroup
		for i := range 3 {
			n := w.node("a")
			n.slow(time.Duration(10+i) * time.Millisecond)
			c := n.config("alloc-1")
			group.Go(func() { _, _ = n.startWith(t.Context(), c) })
		}
		group.Wait()
		test.Len(t, 1, w.store.Runs())
		test.Eq(t, 1, w.running())
	})
}

func TestStart_AfterAnAgentWasKilledResumes(t *testing.T) {
	for _, method := range []string{"List", "Create", "Prepare", "Start"} {
		t.Run(method, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.nomad.set("alloc-1", alive)
				ctx, kill := context.WithCancel(t.Context())
				a := w.node("a")
				a.client.Break(func(m string) (f memory.Fault) {
					if m == method {
						kill()
						f.Answer = true
					}
					return f
				})
				_, err := a.startWith(ctx, a.config("alloc-1"))
				must.Error(t, err)
				a.crash()
				_, err = w.node("a").start("alloc-1")
				must.NoError(t, err)
				test.Len(t, 1, w.store.Runs())
				test.Eq(t, 1, w.running())
			})
		})
	}
}

func TestStart_ThatFailsLeavesNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.nomad.set("alloc-1", alive)
		w.store.Refuse = func(*endpoint.Spec) error { return errors.New("no such program") }
		_, err := w.node("a").start("alloc-1")
		must.ErrorContains(t, err, "no such program")
		test.False(t, structs.IsRecoverable(err))
		test.SliceEmpty(t, w.store.Records())
	})
}

// An endpoint may be connected and not answer, such as one whose disk hangs.
func TestStart_EndsWhereAnEndpointHangs(t *testing.T) {
	for _, call := range []string{"List", "Create", "Take", "Prepare", "Put", "Start"} {
		inWorld(t, func(t *testing.T, w *world) {
			if call == "Take" {
				w.node("a").mustStart("alloc-1")
				w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true})
			}
			b := w.node("b")
			b.client.Break(func(method string) (f memory.Fault) {
				if method == call {
					f.Delay = 1000 * time.Hour
				}
				return f
			})
			w.nomad.set("alloc-2", alive)
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
			defer cancel()
			_, err := b.startWith(ctx, b.config("alloc-2"))
			test.Error(t, err)
			test.True(t, structs.IsRecoverable(err), test.Sprint(call, err))
			test.Less(t, 4*time.Hour, time.Since(begun), test.Sprint(call))
		})
	}
}

// keeping is an endpoint that says yes to a removal, and removes nothing.
type keeping struct{ endpoint.Endpoint }

func (keeping) Remove(context.Context, endpoint.Ref) error { return nil }

func TestStart_EndsWhereAnEndpointDoesNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.mustStart("alloc-1")
		a.crash()
		w.store.Exit(w.record().Name, task.Exit{Code: 3})
		w.nomad.set("alloc-1", Alloc{State: Ended, Told: true})
		b.o.Endpoint = func(string) (endpoint.Endpoint, error) { return keeping{b.client}, nil }
		w.nomad.set("alloc-2", alive)
		begun, asked := time.Now(), w.nomad.asked
		_, err := b.start("alloc-2")
		test.ErrorContains(t, err, "steps did not help")
		test.Less(t, 5*time.Minute, time.Since(begun))
		test.Less(t, 500, w.nomad.asked-asked)
	})
}

func TestStart_KeepsItsLeaseDuringALongCopy(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.mustStart("alloc-1")
		w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true})
		b.client.Break(func(method string) (f memory.Fault) {
			if method == "Put" {
				f.Delay = 10 * testLease
			}
			return f
		})
		go b.mustStart("alloc-2")
		time.Sleep(9 * testLease)
		test.Positive(t, w.record().Lease)
		time.Sleep(2 * testLease)
	})
}

// The nodes of a cluster get the option cluster, or another value of it, while tasks run.
func TestStart_RefusesASecondCopyUnderAnotherClusterName(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		first := w.node("a").mustStart("alloc-1")
		w.nomad.because("alloc-1", Decision{Action: Release, Reason: "the node is drained"})
		must.NoError(t, first.Stop(t.Context(), time.Second, ""))
		w.nomad.set("alloc-1", Alloc{State: Ended, Told: true})
		w.nomad.set("alloc-2", alive)
		b := w.node("b")
		b.o.Name = "prod"
		_, err := b.start("alloc-2")
		must.ErrorContains(t, err, "nomad-driver-remote stop")
		test.True(t, structs.IsRecoverable(err))
		test.Len(t, 1, w.store.Runs())

		delete(w.nomad.allocs, "alloc-1") // it is another cluster's
		w.nomad.foreign = true
		_, err = b.start("alloc-2")
		must.NoError(t, err)
		test.Eq(t, 2, w.running())
	})
}

func TestStart_WaitsForAnOwnerAndSaysSo(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.nomad.quiet(true)
		a, b := w.node("a"), w.node("b")
		first, err := a.start("alloc-1")
		must.NoError(t, err)
		begun := time.Now()
		_, err = b.start("alloc-2")
		must.ErrorContains(t, err, "its lease lasts")
		test.True(t, structs.IsRecoverable(err))
		test.Less(t, 2*testLease, time.Since(begun))
		test.StrContains(t, b.said(), "Waiting at endpoint mem for up to")
		a.crash()
		_, err = b.start("alloc-2")
		must.NoError(t, err)
		test.Len(t, 1, w.store.Runs())
		synctest.Wait()
		test.False(t, first.hasEnded())
	})
}

func TestStart_TellsAnUnattendedExitOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.mustStart("alloc-1")
		a.crash()
		w.store.Exit(w.record().Name, task.Exit{Code: 3})
		w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true, Job: endpoint.Batch})
		time.Sleep(time.Hour)
		rt := b.mustStart("alloc-2")
		must.True(t, ended(rt))
		test.Eq(t, 3, rt.Exit().Code)
		rt.Told(t.Context())
		must.NoError(t, b.Destroy(t.Context(), rt.saved.Owner.TaskID))
		test.Len(t, 1, w.store.Runs())
		test.SliceEmpty(t, w.store.Records())
	})
}

// A job that was purged and is run again has the names and the configuration of the earlier one. How that one ended is
// nothing to it.
func TestStart_OfAPurgedJobThatIsRunAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		w.nomad.set("alloc-1", Alloc{State: Alive, Wanted: true, Job: endpoint.Batch, Index: 5})
		_, err := a.start("alloc-1")
		must.NoError(t, err)
		a.crash()
		w.store.Exit(w.record().Name, task.Exit{Code: 3}) // told to nobody
		w.nomad.forget("alloc-1")
		w.nomad.set("alloc-2", Alloc{State: Alive, Wanted: true, Job: endpoint.Batch, Index: 7})
		again, err := b.start("alloc-2")
		must.NoError(t, err)
		test.False(t, ended(again))
		test.Len(t, 2, w.store.Runs())
		test.Eq(t, 7, w.record().JobIndex)
	})
}

func TestStart_RefusesARegionThatIsNotTheJobs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		other := alive
		other.Region = "europe"
		w.nomad.set("alloc-1", other)
		_, err := a.start("alloc-1")
		must.ErrorContains(t, err, `NOMAD_REGION is "global" in its environment, and the job's region is europe`)
		test.SliceEmpty(t, w.store.Records())
	})
}

// Without the API nobody else can have ended what this start has ended itself, for on_lost = "restart".
func TestStart_RunsAnewWhatItHasEnded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.nomad.quiet(true)
		a, b := w.node("a"), w.node("b", func(t *Task) { t.Restart = true })
		_, err := a.start("alloc-1")
		must.NoError(t, err)
		a.crash()
		_, err = b.start("alloc-2") // waits for the lease
		must.NoError(t, err)
		test.Len(t, 2, w.store.Runs())
		test.Eq(t, 1, w.running())
	})
}

// A start whose answer is lost owns its object, so another node may have it and run it to its end.
func TestStart_RemembersAnObjectThatItCouldNotRun(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		cut := &world{t: t, store: w.store, nomad: &nomad{allocs: map[string]Alloc{}, silent: true}}
		a, b := cut.node("a"), w.node("b")
		a.client.Break(func(method string) memory.Fault { return memory.Fault{Answer: method == "Start"} })
		_, err := a.start("alloc-1")
		must.ErrorIs(t, err, endpoint.ErrUnreachable)
		must.Eq(t, 1, w.running())
		w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true})
		second := b.mustStart("alloc-2")
		w.store.Exit(w.record().Name, task.Exit{})
		must.True(t, ended(second))
		second.Told(t.Context())
		must.NoError(t, b.Destroy(t.Context(), second.saved.Owner.TaskID))
		must.SliceEmpty(t, w.store.Records())
		a.client.Break(nil)
		_, err = a.start("alloc-1")
		must.ErrorContains(t, err, "did not see it end")
		test.Len(t, 1, w.store.Runs())
	})
}
