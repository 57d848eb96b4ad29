// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint/memory"
)

func TestStop_LeavesWhatIsNotItsOwn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		first := a.mustStart("alloc-1")
		a.client.Cut(true)
		w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true})
		b.mustStart("alloc-2")
		time.Sleep(5 * testLease)
		test.False(t, ended(first))
		a.client.Cut(false) // the node comes back
		time.Sleep(time.Minute)
		test.StrContains(t, a.said(), "Not this allocation's task any more: allocation alloc-2 of node b")
		test.False(t, ended(first), test.Sprint("an exit would have Nomad start it again"))

		w.nomad.because("alloc-1", Decision{Action: Stop, Reason: "the job is stopped"})
		must.NoError(t, first.Stop(t.Context(), time.Second, ""))
		must.True(t, ended(first))
		test.Eq(t, task.Exit{}, *first.Exit())
		must.NoError(t, a.Destroy(t.Context(), first.saved.Owner.TaskID))
		test.Eq(t, 1, w.running())
		test.Eq(t, "alloc-2", w.record().Owner.Alloc)
	})
}

func TestStop_ReleasesWhatItsLostAllocationStillOwns(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		w.nomad.because("alloc-1", Decision{Action: NotMine, Reason: "the allocation was lost with its node"})
		must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
		test.Eq(t, endpoint.Released, w.record().State)
		test.Eq(t, 0, rt.Exit().Code)
	})
}

func TestStop_DoesWhatOnUnknownSays(t *testing.T) {
	for option, state := range map[string]endpoint.State{"release": endpoint.Released, "stop": endpoint.Exited} {
		t.Run(option, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.nomad.quiet(true)
				a := w.node("a", func(t *Task) { t.Stop.OnUnknown = option })
				rt, err := a.start("alloc-1")
				must.NoError(t, err)
				must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
				test.Eq(t, state, w.record().State)
				test.StrContains(t, a.said(), "does not answer")
			})
		})
	}
}

func TestStop_KillsAtTheTimeout(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.store.Stubborn = true
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		w.nomad.because("alloc-1", Decision{Action: Stop, Reason: "the job is stopped"})
		begun := time.Now()
		must.NoError(t, rt.Stop(t.Context(), 40*time.Second, "SIGINT"))
		test.Eq(t, 40*time.Second, time.Since(begun))
		must.True(t, ended(rt))
		test.Eq(t, 9, rt.Exit().Signal)
		test.Eq(t, []string{"SIGINT", "SIGKILL"}, w.store.Runs()[0].Signals)
	})
}

func TestStop_FinishesWhenTheEndpointIsBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		w.nomad.because("alloc-1", Decision{Action: Stop, Reason: "the job is stopped"})
		a.client.Cut(true)
		begun := time.Now()
		must.NoError(t, rt.Stop(t.Context(), 5*time.Second, ""))
		test.Less(t, 30*time.Second, time.Since(begun), test.Sprint("2 s for the record, 5 s for the task, 20 s besides"))
		must.True(t, ended(rt))
		test.True(t, rt.Exit().Lost)
		test.StrContains(t, rt.Exit().Reason, "may still run there")
		test.Eq(t, 1, w.running())
		must.NoError(t, a.Destroy(t.Context(), rt.saved.Owner.TaskID))
		time.Sleep(time.Minute)
		a.client.Cut(false)
		time.Sleep(time.Minute)
		test.Eq(t, 0, w.running())
		test.SliceEmpty(t, w.store.Records())
	})
}

func TestStart_EndsWhatAStopDidNotReach(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		first := a.mustStart("alloc-1")
		w.nomad.because("alloc-1", Decision{Action: Stop, Reason: "the task is restarted"})
		a.client.Cut(true)
		must.NoError(t, first.Stop(t.Context(), time.Second, ""))
		_, err := a.start("alloc-1")
		must.ErrorIs(t, err, endpoint.ErrUnreachable)
		a.client.Cut(false)
		_, err = a.start("alloc-1")
		must.NoError(t, err)
		time.Sleep(10 * time.Minute)
		must.Eq(t, 1, w.running())
		must.Len(t, 2, w.store.Runs())
		test.False(t, w.store.Runs()[0].To.After(w.store.Runs()[1].From), test.Sprint("one after the other"))
	})
}

func TestRelease_LeavesTheLeaseWhereItCantReach(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		rt := a.mustStart("alloc-1")
		w.nomad.because("alloc-1", Decision{Action: Release, Reason: "the node is drained"})
		a.client.Cut(true)
		must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
		must.True(t, ended(rt))
		test.Eq(t, task.Exit{}, *rt.Exit())
		test.StrContains(t, a.said(), "when its lease of 30s has run out")
		w.nomad.quiet(true)
		begun := time.Now()
		_, err := b.start("alloc-2")
		must.NoError(t, err)
		test.Less(t, testLease, time.Since(begun))
		test.Len(t, 1, w.store.Runs())
	})
}

// A call that has its effect while its answer is lost is the case in which a second attempt
// is refused, though this node is the owner.
func TestEngine_TakesALostAnswerForWhatItIs(t *testing.T) {
	methods := []string{"Create", "Prepare", "Put", "Start", "Take", "Release", "Stop", "Renew", "Watch", "Get", "List"}
	for _, method := range methods {
		for _, raises := range []bool{false, true} {
			t.Run(method, func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					w.store.ReleaseRaises = raises
					a, b := w.node("a"), w.node("b")
					once := func() func(string) memory.Fault {
						lost := false
						return func(m string) (f memory.Fault) {
							if m == method && !lost {
								lost, f.Answer = true, true
							}
							return f
						}
					}
					a.client.Break(once())
					b.client.Break(once())
					first := a.mustStart("alloc-1")
					w.nomad.because("alloc-1", Decision{Action: Release, Reason: "the node is drained"})
					must.NoError(t, first.Stop(t.Context(), time.Second, ""))
					must.True(t, ended(first))
					must.Eq(t, endpoint.Released, w.record().State, must.Sprint(a.said()))
					w.nomad.set("alloc-1", Alloc{State: Ended, Told: true})
					second := b.mustStart("alloc-2")
					must.Len(t, 1, w.store.Runs())
					w.nomad.because("alloc-2", Decision{Action: Stop, Reason: "the job is stopped"})
					must.NoError(t, second.Stop(t.Context(), time.Second, ""))
					must.True(t, ended(second))
					test.Eq(t, 15, second.Exit().Signal)
				})
			})
		}
	}
}

func TestRenew_WaitsForASlowEndpoint(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		a.mustStart("alloc-1")
		calls := 0
		a.client.Break(func(method string) (f memory.Fault) {
			if method != "Renew" {
				return f
			}
			calls++
			f.Delay = testLease / 4 // and each third never arrives
			f.Request = calls%3 == 0
			return f
		})
		for range 100 {
			time.Sleep(testLease / 3)
			must.Positive(t, w.record().Lease)
		}
	})
}

// An exit that the watch does not know yet is told, and not hidden by a release, which is exit 0.
func TestStop_TellsTheExitOfATaskThatHasEnded(t *testing.T) {
	for _, during := range []string{"Get", "Release"} { // the call before which it ends
		t.Run(during, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.node("a")
				ends := false
				a.client.Break(func(method string) (f memory.Fault) {
					if method == "Watch" {
						f.Delay = time.Hour
					}
					if ends && method == during {
						ends = false
						w.store.Exit(w.record().Name, task.Exit{Code: 3})
					}
					return f
				})
				rt := a.mustStart("alloc-1")
				w.nomad.because("alloc-1", Decision{Action: Release, Reason: "the node is drained"})
				ends = true
				must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
				must.True(t, ended(rt))
				test.Eq(t, 3, rt.Exit().Code, test.Sprint(a.said()))
				test.False(t, w.record().GivenUp)
			})
		})
	}
}
