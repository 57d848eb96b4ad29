// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

func TestEngine_RunsATaskToItsExit(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		r := w.record()
		must.Eq(t, endpoint.Running, r.State)
		var run driver.Run
		rt.Describe(&run)
		test.Eq(t, "mem", run.Attributes["endpoint"])
		test.Eq(t, r.Name, run.Attributes["object"])
		test.Eq(t, "1", run.Attributes["epoch"])
		test.Eq(t, "192.0.2.1", run.Network.IP)
		test.Eq(t, 80, run.Network.PortMap["http"])

		time.Sleep(10 * testLease)
		test.False(t, ended(rt))
		test.Positive(t, w.record().Lease, test.Sprint("renewed"))
		w.store.Exit(r.Name, task.Exit{Code: 7})
		must.True(t, ended(rt))
		test.Eq(t, 7, rt.Exit().Code)
		must.NoError(t, a.Destroy(t.Context(), rt.saved.Owner.TaskID))
		test.Len(t, 1, w.store.Records(), test.Sprint("Nomad was not told"))
	})
}

func TestStart_RefusesAnIndexThatIsNotNomads(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		for index, want := range map[string]string{"": "is \"\"", "-1": "is \"-1\"", "7": "the allocation is job.group[0]"} {
			c := a.config("alloc-1")
			c.Env["NOMAD_ALLOC_NAME"], c.Env["NOMAD_ALLOC_INDEX"] = "job.group[0]", index
			_, err := a.startWith(t.Context(), c)
			test.ErrorContains(t, err, want)
		}
		test.SliceEmpty(t, w.store.Records())
	})
}

func TestDestroy_RemovesWhatWasTold(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		w.store.Exit(w.record().Name, task.Exit{Code: 7})
		must.True(t, ended(rt))
		rt.Told(t.Context())
		test.True(t, w.record().Told)
		must.NoError(t, a.Destroy(t.Context(), rt.saved.Owner.TaskID))
		test.SliceEmpty(t, w.store.Records())
		must.NoError(t, a.Destroy(t.Context(), rt.saved.Owner.TaskID))
	})
}

func TestStop_StopsWhatNomadWantsStopped(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		w.nomad.because("alloc-1", Decision{Action: Stop, Reason: "the job was stopped"})
		must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
		must.True(t, ended(rt))
		test.Eq(t, 15, rt.Exit().Signal)
		test.StrContains(t, a.said(), "the job was stopped")
		test.Eq(t, 0, w.running())
	})
}

func TestRelease_IsAdoptedByTheNextNode(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		first := a.mustStart("alloc-1")
		pid := w.record().PID
		w.nomad.because("alloc-1", Decision{Action: Release, Reason: "the node is drained"})
		must.NoError(t, first.Stop(t.Context(), time.Second, ""))
		must.True(t, ended(first))
		test.Eq(t, task.Exit{}, *first.Exit())
		test.StrContains(t, a.said(), "the node is drained")
		test.Eq(t, endpoint.Released, w.record().State)

		time.Sleep(time.Hour) // #10592: no other node is free for a while
		w.nomad.set("alloc-1", Alloc{State: Ended, Told: true})
		second := b.mustStart("alloc-2")
		r := w.record()
		test.Eq(t, endpoint.Running, r.State)
		test.Eq(t, pid, r.PID)
		test.Eq(t, "alloc-2", r.Owner.Alloc)
		test.Len(t, 1, w.store.Runs())

		// what is late of the first node touches nothing
		must.NoError(t, a.Destroy(t.Context(), first.saved.Owner.TaskID))
		test.Eq(t, 1, w.running())
		test.False(t, ended(second))
	})
}

func TestRecover_FollowsItsTask(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		state, err := rt.Saved()
		must.NoError(t, err)
		a.crash()
		synctest.Wait()
		test.False(t, ended(rt), test.Sprint("its plugin ended, it did not"))

		again := w.node("a")
		got, err := again.recoverTask(rt.saved.Owner.TaskID, state)
		must.NoError(t, err)
		time.Sleep(2 * testLease)
		test.Positive(t, w.record().Lease, test.Sprint("renewed"))
		w.store.Exit(w.record().Name, task.Exit{Code: 3})
		must.True(t, ended(got.(*remoteTask)))
		test.Eq(t, 3, got.Exit().Code)
	})
}

// What an endpoint says goes to Nomad's servers and to terminals, and may have any length and any characters.
func TestEngine_TakesLittleOfAnEndpointsWords(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.store.ReleaseRaises = true
		long := "\x1b[31mred\n" + strings.Repeat("x", 1<<20)
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		w.store.Exit(w.record().Name, task.Exit{Lost: true, Reason: long})
		must.True(t, ended(rt))
		test.Less(t, 2*mostSaid, len(rt.Exit().Reason))
		test.StrHasPrefix(t, "[31mred; xxx", rt.Exit().Reason)
		test.Less(t, 2*mostSaid, len((&start{task: rt}).failed(t.Context(), errors.New(long)).Error()))
		must.NoError(t, w.store.Connect().Remove(t.Context(), w.record().Ref()))

		a.mustStart("alloc-1")
		must.NoError(t, w.store.Connect().Release(t.Context(), w.record().Ref(), endpoint.Mutable{}, long))
		time.Sleep(time.Second)
		test.StrContains(t, a.said(), "Released object")
		test.Less(t, 10*mostSaid, len(a.said()))
		test.StrNotContains(t, a.said(), "\x1b")
	})
}
