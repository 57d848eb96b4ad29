// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint/memory"
)

// crashed is a task whose plugin has crashed, with what Nomad keeps of it.
func crashed(t *testing.T, w *world) (id string, state []byte) {
	a := w.node("a")
	rt := a.mustStart("alloc-1")
	state, err := rt.Saved()
	must.NoError(t, err)
	a.crash()
	return rt.saved.Owner.TaskID, state
}

func TestRecover_RefusesWhatAnotherOwns(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		id, state := crashed(t, w)
		w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true})
		w.node("b").mustStart("alloc-2")
		a := w.node("a")
		_, err := a.recoverTask(id, state)
		must.ErrorContains(t, err, "allocation alloc-2 of node b has taken it over")
		must.NoError(t, a.Destroy(t.Context(), id)) // as Nomad does after that
		test.Eq(t, 1, w.running())
		test.Eq(t, "alloc-2", w.record().Owner.Alloc)
	})
}

func TestRecover_RefusesWhatIsGone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		id, state := crashed(t, w)
		w.store.Lose(w.record().Name)
		a := w.node("a")
		_, err := a.recoverTask(id, state)
		must.ErrorContains(t, err, "is not at endpoint mem any more")
	})
}

func TestRecover_TellsAnExitExactly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		id, state := crashed(t, w)
		w.store.Exit(w.record().Name, task.Exit{Signal: 9, OOMKilled: true})
		a := w.node("a")
		got, err := a.recoverTask(id, state)
		must.NoError(t, err)
		must.True(t, ended(got.(*remoteTask)))
		test.Eq(t, 9, got.Exit().Signal)
		test.True(t, got.Exit().OOMKilled)
		test.StrContains(t, a.said(), "OOM: killed at endpoint mem")
	})
}

func TestRecover_TellsARelease(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		id, state := crashed(t, w)
		must.NoError(t, w.store.Connect().Release(t.Context(), w.record().Ref(), endpoint.Mutable{}, "the node is drained"))
		a := w.node("a")
		got, err := a.recoverTask(id, state)
		must.NoError(t, err)
		must.True(t, ended(got.(*remoteTask)))
		test.Eq(t, task.Exit{}, *got.Exit())
		test.Eq(t, endpoint.Released, w.record().State)
	})
}

func TestRecover_WaitsForAnEndpoint(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(w *world)
		code      int // of the exit, -1: it does not end
	}{
		"it runs":               {func(*world) {}, -1},
		"it has ended":          {func(w *world) { w.store.Exit(w.record().Name, task.Exit{Code: 4}) }, 4},
		"another one owns it":   {func(w *world) { w.node("b").mustStart("alloc-2") }, -1},
		"the host was rebooted": {func(w *world) { w.store.Reboot() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				id, state := crashed(t, w)
				a := w.node("a")
				a.client.Cut(true)
				got, err := a.recoverTask(id, state)
				must.NoError(t, err)
				w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true})
				c.meanwhile(w)
				time.Sleep(time.Minute)
				test.False(t, ended(got.(*remoteTask)))
				test.StrContains(t, a.said(), "can't be reached")
				a.client.Cut(false)
				time.Sleep(time.Minute)
				test.StrContains(t, a.said(), "is reached again")
				must.Eq(t, c.code >= 0, ended(got.(*remoteTask)))
				if c.code >= 0 {
					test.Eq(t, c.code, got.Exit().Code)
					test.Eq(t, c.code == 0, got.Exit().Lost)
				}
			})
		})
	}
}

// A plugin is started again while the endpoint is away, and the task is released as soon as it is there.
func TestRecover_ReleasesNoLineTwice(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		top := t.TempDir()
		config := func(n *node, alloc string) *drivers.TaskConfig {
			c := n.config(alloc)
			c.AllocDir = filepath.Join(top, alloc)
			must.NoError(t, os.MkdirAll(filepath.Join(c.AllocDir, "alloc", "logs"), 0o755))
			w.nomad.set(alloc, alive)
			return c
		}
		a := w.node("a")
		c := config(a, "alloc-1")
		first, err := a.startWith(t.Context(), c)
		must.NoError(t, err)
		name := w.record().Name
		w.store.Write(name, "stdout", []byte("0\n"))
		time.Sleep(2 * markEvery)
		w.store.Write(name, "stdout", []byte("1\n"))
		synctest.Wait() // it is in the file, and no mark says so
		state, err := first.Saved()
		must.NoError(t, err)
		a.crash()

		a = w.node("a")
		a.client.Cut(true)
		again, err := a.Recover(t.Context(), c, state, a.event)
		must.NoError(t, err)
		time.Sleep(testLease / 2)
		var gets atomic.Int32
		a.client.Break(func(method string) (f memory.Fault) {
			switch {
			case method == "Get" && gets.Add(1) == 1: // of the watch: it returns when the release is under way
				f.Delay = 4 * time.Second
			case method == "Release":
				f.Delay = 9 * time.Second
			}
			return f
		})
		a.client.Cut(false)
		for gets.Load() == 0 {
			time.Sleep(time.Second)
		}
		w.nomad.because("alloc-1", Decision{Action: Release, Reason: "the node is drained"})
		time.AfterFunc(8*time.Second, func() { w.store.Write(name, "stdout", []byte("2\n")) })
		must.NoError(t, again.(*remoteTask).Stop(t.Context(), time.Second, ""))
		test.StrContains(t, a.said(), "Released")
		w.nomad.set("alloc-1", Alloc{State: Ended, Told: true})

		b := w.node("b")
		_, err = b.startWith(t.Context(), config(b, "alloc-2"))
		must.NoError(t, err)
		w.store.Write(name, "stdout", []byte("3\n"))
		time.Sleep(2 * markEvery)
		all, err := exec.Command("cat", filepath.Join(top, "alloc-1/alloc/logs/echo.stdout.0"),
			filepath.Join(top, "alloc-2/alloc/logs/echo.stdout.0")).Output()
		must.NoError(t, err)
		test.Eq(t, "0\n1\n2\n3\n", string(all))
	})
}

func TestRecover_OfManyDoesNotHoldUpTheAgent(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		id, state := crashed(t, w)
		a := w.node("a")
		a.client.Break(func(string) memory.Fault { return memory.Fault{Delay: time.Hour} }) // a link that drops all
		begun := time.Now()
		for range 100 {
			_, err := a.recoverTask(id, state)
			must.NoError(t, err)
		}
		test.Less(t, 15*time.Second, time.Since(begun))
	})
}

func TestTask_ThatAPersonReleasesEnds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.store.ReleaseRaises = true
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		must.NoError(t, w.store.Connect().Release(t.Context(), w.record().Ref(), endpoint.Mutable{}, "by hand"))
		time.Sleep(time.Second)
		must.True(t, ended(rt))
		test.Eq(t, task.Exit{}, *rt.Exit())
		test.StrContains(t, a.said(), "by hand")
		test.Eq(t, 1, w.running())
	})
}

// With reconcile = "keep_original" Nomad stops the replacement when the node is back.
func TestReclaim_TakesBackWhatTheReplacementReleases(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		first := a.mustStart("alloc-1")
		w.nomad.set("alloc-1", Alloc{State: Disconnected, Wanted: true})
		second := b.mustStart("alloc-2")
		time.Sleep(time.Minute)
		w.nomad.set("alloc-1", alive)
		time.Sleep(time.Minute)
		test.Eq(t, "alloc-2", w.record().Owner.Alloc, test.Sprint("both are alive: nobody takes anything"))

		w.nomad.because("alloc-2", Decision{Action: Release, Reason: "another allocation was kept"})
		must.NoError(t, second.Stop(t.Context(), time.Second, ""))
		w.nomad.set("alloc-2", Alloc{State: Ended})
		time.Sleep(time.Minute)
		test.Eq(t, "alloc-1", w.record().Owner.Alloc)
		test.False(t, ended(first))
		test.StrContains(t, a.said(), "owns object")
		w.store.Exit(w.record().Name, task.Exit{Code: 6})
		must.True(t, ended(first))
		test.Eq(t, 6, first.Exit().Code)
		test.Len(t, 1, w.store.Runs())
	})
}

// What the object runs is what the allocation started, even if a template was rendered again since.
func TestReclaim_TakesBackWhatAPersonReleases(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		first := a.mustStart("alloc-1")
		by := w.store.Connect()
		must.NoError(t, by.Renew(t.Context(), w.record().Ref(), endpoint.Mutable{Files: "newer"}))
		taken, err := by.Take(t.Context(), w.record().Ref(), endpoint.Owner{TaskID: "by-hand/1"})
		must.NoError(t, err)
		must.NoError(t, by.Release(t.Context(), taken.Ref(), endpoint.Mutable{}, "by hand"))
		time.Sleep(time.Minute)
		test.Eq(t, "alloc-1", w.record().Owner.Alloc)
		test.Eq(t, endpoint.Running, w.record().State)
		test.False(t, ended(first))
		test.StrContains(t, a.said(), ": a person has taken over object")
		test.StrContains(t, a.said(), "owns object")
	})
}

// The other way round the original is stopped, and touches nothing.
func TestReclaim_LeavesWhatTheReplacementKeeps(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		first := a.mustStart("alloc-1")
		w.nomad.set("alloc-1", Alloc{State: Disconnected, Wanted: true})
		second := b.mustStart("alloc-2")
		w.nomad.set("alloc-1", Alloc{State: Alive})
		w.nomad.because("alloc-1", Decision{Action: Release, Reason: "another allocation was kept"})
		must.NoError(t, first.Stop(t.Context(), time.Second, ""))
		time.Sleep(time.Hour)
		test.Eq(t, "alloc-2", w.record().Owner.Alloc)
		test.Eq(t, endpoint.Running, w.record().State)
		test.False(t, ended(second))
	})
}

// A node that is cut off from the servers does not know whose turn it is.
func TestReclaim_NeedsNomadsWord(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		first := a.mustStart("alloc-1")
		w.nomad.set("alloc-1", Alloc{State: Ended, Lost: true})
		second := b.mustStart("alloc-2")
		w.nomad.because("alloc-2", Decision{Action: Release, Reason: "the node is drained"})
		must.NoError(t, second.Stop(t.Context(), time.Second, ""))
		w.nomad.quiet(true)
		time.Sleep(time.Hour)
		test.Eq(t, endpoint.Released, w.record().State)
		test.Eq(t, "alloc-2", w.record().Owner.Alloc)
		test.False(t, ended(first))
	})
}

// An agent that is killed while it starts a task starts it again: the earlier start is nobody's.
func TestReclaim_LeavesALaterStartOfItsAllocation(t *testing.T) {
	for name, again := range map[string]func(w *world, a *node) *node{
		"in this process": func(_ *world, a *node) *node { return a },
		"in another":      func(w *world, _ *node) *node { return w.node("a") },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.node("a")
				first := a.mustStart("alloc-1")
				second := again(w, a).mustStart("alloc-1")
				test.Eq(t, name == "in this process", ended(first))
				time.Sleep(10 * testLease)
				must.Eq(t, 2, w.record().Epoch, must.Sprint("nobody took it since"))
				must.Eq(t, second.saved.Owner, w.record().Owner)
				w.nomad.because("alloc-1", Decision{Action: Stop, Reason: "the job is stopped"})
				must.NoError(t, second.Stop(t.Context(), time.Second, ""))
				must.True(t, ended(second))
				test.Eq(t, 15, second.Exit().Signal)
				test.Eq(t, 0, w.running())
			})
		})
	}
}

func TestTask_ThatIsGoneIsLost(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		w.store.Lose(w.record().Name)
		must.True(t, ended(rt))
		test.True(t, rt.Exit().Lost)
	})
	inWorld(t, func(t *testing.T, w *world) { // without an answer another owner may have removed it
		a := w.node("a")
		rt := a.mustStart("alloc-1")
		w.nomad.quiet(true)
		w.store.Lose(w.record().Name)
		time.Sleep(testLease)
		must.False(t, ended(rt))
		time.Sleep(2 * testLease)
		must.True(t, ended(rt))
	})
	inWorld(t, func(t *testing.T, w *world) { // that it was not found once, a day before, says nothing
		rt := w.node("a").mustStart("alloc-1")
		w.nomad.quiet(true)
		must.False(t, rt.gone())
		must.True(t, rt.see(w.record()))
		time.Sleep(24 * time.Hour)
		must.False(t, rt.gone())
	})
}

// What Nomad's disk has of a task has the token once: in the environment, where Nomad itself puts it.
func TestRecover_AsksWithTheIdentityOfTheEnvironment(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.node("a")
		c := a.config("alloc-1")
		c.Env["NOMAD_TOKEN"] = "a-secret"
		w.nomad.set("alloc-1", alive)
		rt, err := a.startWith(t.Context(), c)
		must.NoError(t, err)
		test.Eq(t, "a-secret", rt.saved.Asker.Token)
		state, err := rt.Saved()
		must.NoError(t, err)
		test.StrNotContains(t, string(state), "a-secret")
		a.crash()
		b := w.node("a")
		again, err := b.Recover(t.Context(), c, state, b.event)
		must.NoError(t, err)
		test.Eq(t, "a-secret", again.(*remoteTask).saved.Asker.Token)
		state, err = again.(*remoteTask).Saved()
		must.NoError(t, err)
		test.StrNotContains(t, string(state), "a-secret")
	})
}
