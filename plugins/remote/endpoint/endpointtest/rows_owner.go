// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package endpointtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The rows on who owns an object.
func init() {
	rows = append(rows,
		row{"one of several makes an object", nil, createRace},
		row{"one of several takes an object over", nil, takeRace},
		row{"an old epoch changes nothing", nil, oldEpoch},
		row{"an object has its states", nil, states},
		row{"an object that has ended is not released", nil, notReleased},
		row{"a lease runs out", nil, leases},
		row{"marks and what was told are kept", nil, marks},
		row{"what is stored last is kept", nil, lastMarks},
		row{"a watch wakes", nil, watches},
		row{"removal is done once", nil, removal},
		row{"one that is made anew is another", nil, madeAnew},
	)
}

var rows []row

const racers = 4

func createRace(x *run) {
	var nodes []endpoint.Endpoint
	for range racers {
		nodes = append(nodes, x.connect())
		_, err := nodes[len(nodes)-1].Probe(x.context())
		must.NoError(x, err)
	}
	for round := range 5 {
		k := endpoint.Key{Job: x.Name(), Task: taskName, Index: round}
		name := k.Name("feedfeedfeed")
		x.Cleanup(func() { x.clear(name) })
		x.oneWins(together(racers, func(i int) error {
			return nodes[i].Create(x.context(), &endpoint.Record{Name: name, Key: k, Owner: owner(fmt.Sprint(i))})
		}), endpoint.ErrExists)
		r := x.get(name)
		must.Eq(x, 1, r.Epoch)
		must.Eq(x, endpoint.Starting, r.State)
	}
}

func takeRace(x *run) { x.takeRaces(racers, 5) }

// TakeRaces lets several nodes take an object over at the same time, again and again: each time one owns it, as all
// see, and the program runs on.
func TakeRaces(t *testing.T, c Column, nodes, rounds int) {
	(&run{T: t, Column: c}).takeRaces(nodes, rounds)
}

func (x *run) takeRaces(count, rounds int) {
	ref := x.shell("exec sleep 1000")
	started := x.get(ref.Name)
	var nodes []endpoint.Endpoint
	for range count {
		nodes = append(nodes, x.connect())
	}
	for range rounds {
		won := make([]*endpoint.Record, count)
		x.oneWins(together(count, func(i int) (err error) {
			won[i], err = nodes[i].Take(x.context(), ref, owner(fmt.Sprint(i)))
			return err
		}), endpoint.ErrEpoch)
		for i, r := range won {
			if r == nil {
				continue
			}
			must.Eq(x, owner(fmt.Sprint(i)), r.Owner)
			must.Eq(x, ref.Epoch+1, r.Epoch)
			for _, e := range nodes {
				seen, err := e.Get(x.context(), ref.Name)
				must.NoError(x, err)
				must.Eq(x, r.Owner, seen.Owner)
				must.Eq(x, r.Ref(), seen.Ref())
				must.Eq(x, started.PID, seen.PID)
			}
			ref = r.Ref()
		}
	}
}

func oldEpoch(x *run) {
	s := x.Column.Shell("trap 'echo trapped' TERM HUP; echo ready; while :; do sleep 0.05; done")
	old := x.start(s)
	x.says(old.Name, "ready\n")
	r, err := x.connect().Take(x.context(), old, owner("b"))
	must.NoError(x, err)
	e, ctx := x.e(), x.context()
	for name, call := range map[string]func() error{
		"take":    func() error { _, err := e.Take(ctx, old, owner("a")); return err },
		"prepare": func() error { return e.Prepare(ctx, old, s, func(string) {}) },
		"put":     func() error { return e.Put(ctx, old, archive(x, file{name: "local/f", text: "x"})) },
		"start":   func() error { _, err := e.Start(ctx, old, s); return err },
		"renew":   func() error { return e.Renew(ctx, old, endpoint.Mutable{Told: true}) },
		"release": func() error { return e.Release(ctx, old, endpoint.Mutable{}, "drained") },
		"signal":  func() error { return e.Signal(ctx, old, "SIGHUP") },
		"stop":    func() error { _, err := e.Stop(ctx, old, "SIGTERM", time.Second, "stopped"); return err },
		"remove":  func() error { return e.Remove(ctx, old) },
		"exec": func() error {
			_, err := e.Exec(ctx, old, &endpoint.ExecOptions{Command: []string{"/bin/true"}})
			return err
		},
	} {
		test.ErrorIs(x, call(), endpoint.ErrEpoch, test.Sprint(name))
	}
	now := x.get(old.Name)
	must.Eq(x, r.Ref(), now.Ref())
	must.Eq(x, endpoint.Running, now.State)
	must.Eq(x, owner("b"), now.Owner)
	must.False(x, now.Told)
	out, code := x.exec(now.Ref(), "true")
	must.Eq(x, 0, code, must.Sprint(out))
	_, err = x.e().Stop(x.context(), now.Ref(), "SIGKILL", 0, "stopped")
	must.NoError(x, err)
	out, _ = x.output(old.Name, "stdout", endpoint.Place{}, 0)
	must.Eq(x, "ready\n", out)
}

func states(x *run) {
	ref, s := x.object(), x.Column.Shell("trap 'exit 143' TERM; echo ready; "+loop)
	r := x.get(ref.Name)
	must.Eq(x, endpoint.Starting, r.State)
	must.Eq(x, owner("a"), r.Owner)
	must.Eq(x, "started", r.Reason)
	must.Eq(x, endpoint.Service, r.Job)
	must.Eq(x, 42, r.JobIndex)
	must.Eq(x, endpoint.Kill{Signal: "SIGTERM", Grace: time.Second}, r.Kill)
	must.Eq(x, time.Hour, r.Orphan)
	must.Between(x, 0, r.Lease, x.Lease+2*time.Second)
	must.NoError(x, x.e().Prepare(x.context(), ref, s, func(string) {}))
	r, err := x.e().Start(x.context(), ref, s)
	must.NoError(x, err)
	must.Eq(x, endpoint.Running, r.State)
	must.Positive(x, r.PID)
	pid, started := r.PID, r.Started
	must.Between(x, 0, r.Age, limit)

	mark := func(offset int64) endpoint.Mutable {
		place := endpoint.Place{Offset: offset}
		return endpoint.Mutable{Logs: map[string]endpoint.LogMark{"stdout": {Place: place, Alloc: "a"}}}
	}
	must.NoError(x, x.e().Renew(x.context(), ref, mark(1)))
	must.NoError(x, x.e().Release(x.context(), ref, mark(2), "the node is drained"))
	r = x.get(ref.Name)
	must.Eq(x, mark(2).Logs, r.Logs, must.Sprint("what was copied last is copied again"))
	must.Eq(x, endpoint.Released, r.State, must.Sprint(sprint(r)))
	must.True(x, r.GivenUp)
	must.Eq(x, "the node is drained", r.Reason)
	must.Error(x, x.e().Remove(x.context(), r.Ref()), must.Sprint("one that runs is removed"))

	r, err = x.e().Take(x.context(), r.Ref(), owner("b"))
	must.NoError(x, err)
	must.Eq(x, endpoint.Running, r.State)
	must.False(x, r.GivenUp)
	must.Eq(x, mark(2).Logs, r.Logs)
	must.Eq(x, owner("b"), r.Owner)
	must.Eq(x, pid, r.PID)
	must.True(x, started.Equal(r.Started))
	must.Error(x, x.e().Remove(x.context(), r.Ref()), must.Sprint("one that runs is removed"))

	r, err = x.e().Stop(x.context(), r.Ref(), "SIGTERM", limit, "the job was stopped")
	must.NoError(x, err)
	must.Eq(x, endpoint.Exited, r.State)
	must.Eq(x, 15, r.Exit.Signal+r.Exit.Code&15, must.Sprint(sprint(r))) // by the signal, or 143 of a container
	must.Eq(x, "the job was stopped", r.Reason)
	again, err := x.e().Stop(x.context(), r.Ref(), "SIGTERM", limit, "again")
	must.NoError(x, err)
	must.Eq(x, r.Exit, again.Exit)
	r, err = x.e().Take(x.context(), r.Ref(), owner("c"))
	must.NoError(x, err)
	must.Eq(x, endpoint.Exited, r.State)
}

// Nomad takes a release for exit code 0.
func notReleased(x *run) {
	ref := x.shell("exit 3")
	before := x.exited(ref)
	must.Error(x, x.e().Release(x.context(), ref, endpoint.Mutable{}, "the node is drained"))
	r := x.get(ref.Name)
	must.Eq(x, endpoint.Exited, r.State)
	must.False(x, r.GivenUp)
	must.Eq(x, before.Ref(), r.Ref())
	must.Eq(x, before.Reason, r.Reason)
}

func leases(x *run) {
	ref := x.shell("exec sleep 1000")
	must.NoError(x, x.e().Renew(x.context(), ref, endpoint.Mutable{}))
	lease := x.get(ref.Name).Lease
	must.Between(x, x.Lease/4, lease, x.Lease+2*time.Second)
	x.within(func() error {
		if left := x.get(ref.Name).Lease; left > 0 {
			return fmt.Errorf("it lasts for %v", left)
		}
		return nil
	})
	must.NoError(x, x.e().Renew(x.context(), ref, endpoint.Mutable{}))
	must.Positive(x, x.get(ref.Name).Lease)
	r, err := x.e().Take(x.context(), ref, owner("b"))
	must.NoError(x, err)
	must.Between(x, x.Lease/4, r.Lease, x.Lease+2*time.Second)
}

func marks(x *run) {
	ref := x.shell("exit 3")
	out := endpoint.LogMark{Place: endpoint.Place{File: 1, Offset: 17}, Alloc: "a"}
	errs := endpoint.LogMark{Place: endpoint.Place{Offset: 4}, Alloc: "b"}
	must.NoError(x, x.e().Renew(x.context(), ref, endpoint.Mutable{Logs: map[string]endpoint.LogMark{
		"stdout": {Alloc: "z"}, "stderr": errs,
	}}))
	must.NoError(x, x.e().Renew(x.context(), ref, endpoint.Mutable{Logs: map[string]endpoint.LogMark{"stdout": out}}))
	want := map[string]endpoint.LogMark{"stdout": out, "stderr": errs}
	must.Eq(x, want, x.get(ref.Name).Logs)
	r, err := x.connect().Take(x.context(), ref, owner("b"))
	must.NoError(x, err)
	must.Eq(x, want, r.Logs)
	must.False(x, r.Told)
	r = x.exited(r.Ref())
	must.Eq(x, 3, r.Exit.Code)
	must.NoError(x, x.e().Renew(x.context(), r.Ref(), endpoint.Mutable{Told: true}))
	r, err = x.connect().Get(x.context(), ref.Name)
	must.NoError(x, err)
	must.True(x, r.Told)
	must.Eq(x, want, r.Logs)
}

func lastMarks(x *run) {
	ref := x.shell("exec sleep 1000")
	at := func(n int64) endpoint.Mutable {
		mark := endpoint.LogMark{Place: endpoint.Place{Offset: n}, Before: &endpoint.LogMark{Alloc: "b"}}
		return endpoint.Mutable{Logs: map[string]endpoint.LogMark{"stdout": mark}, Files: fmt.Sprint(n)}
	}
	must.NoError(x, x.e().Renew(x.context(), ref, at(1)))
	must.NoError(x, x.e().Renew(x.context(), ref, endpoint.Mutable{}))
	must.Eq(x, at(1), x.get(ref.Name).Mutable)
	must.NoError(x, x.e().Release(x.context(), ref, at(2), "released"))
	r := x.get(ref.Name)
	must.Eq(x, at(2), r.Mutable)
	r, err := x.connect().Take(x.context(), r.Ref(), owner("b"))
	must.NoError(x, err)
	must.Eq(x, at(2), r.Mutable)
}

func watches(x *run) {
	type result struct {
		r   *endpoint.Record
		err error
	}
	watch := func(ref endpoint.Ref) <-chan result {
		c, e, ctx := make(chan result, 1), x.connect(), x.context()
		go func() {
			r, err := e.Watch(ctx, ref)
			c <- result{r, err}
		}()
		time.Sleep(200 * time.Millisecond) // it waits by now, most likely
		return c
	}
	ref := x.shell("exec sleep 1000")
	taken := watch(ref)
	r, err := x.e().Take(x.context(), ref, owner("b"))
	must.NoError(x, err)
	got := <-taken
	must.NoError(x, got.err)
	must.Eq(x, r.Epoch, got.r.Epoch)
	must.Eq(x, owner("b"), got.r.Owner)

	ended := watch(r.Ref())
	_, err = x.e().Stop(x.context(), r.Ref(), "SIGKILL", 0, "stopped")
	must.NoError(x, err)
	got = <-ended
	must.NoError(x, got.err)
	must.Eq(x, endpoint.Exited, got.r.State)

	unused := x.object()
	gone := watch(unused)
	must.NoError(x, x.e().Remove(x.context(), unused))
	got = <-gone
	must.ErrorIs(x, got.err, endpoint.ErrGone)

	ctx, cancel := context.WithTimeout(x.T.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = x.e().Watch(ctx, x.shell("exec sleep 1000"))
	must.True(x, errors.Is(err, context.DeadlineExceeded), must.Sprintf("%v", err))
}

func removal(x *run) {
	ref := x.shell("exit 0")
	r := x.exited(ref)
	list, err := x.e().List(x.context())
	must.NoError(x, err)
	found := false
	for _, l := range list {
		found = found || l.Name == ref.Name && l.State == endpoint.Exited && l.Key == r.Key
	}
	must.True(x, found)
	must.NoError(x, x.e().Remove(x.context(), r.Ref()))
	must.NoError(x, x.e().Remove(x.context(), r.Ref()))
	_, err = x.connect().Get(x.context(), ref.Name)
	must.ErrorIs(x, err, endpoint.ErrGone)
	for name, call := range map[string]func() error{
		"renew":  func() error { return x.e().Renew(x.context(), ref, endpoint.Mutable{}) },
		"take":   func() error { _, err := x.e().Take(x.context(), ref, owner("b")); return err },
		"signal": func() error { return x.e().Signal(x.context(), ref, "SIGHUP") },
		"stats":  func() error { _, err := x.e().Stats(x.context(), ref.Name); return err },
		"watch":  func() error { _, err := x.e().Watch(x.context(), ref); return err },
		"logs":   func() error { _, err := x.e().Logs(x.context(), ref.Name, "stdout", endpoint.Place{}, 0); return err },
	} {
		test.ErrorIs(x, call(), endpoint.ErrGone, test.Sprint(name))
	}
	list, err = x.e().List(x.context())
	must.NoError(x, err)
	for _, l := range list {
		must.False(x, strings.HasPrefix(l.Name, ref.Name))
	}
}

// The epochs of the new one are those of the old one.
func madeAnew(x *run) {
	ref := x.shell("exit 0")
	r := x.exited(ref)
	must.NoError(x, x.e().Remove(x.context(), ref))
	must.NoError(x, x.e().Create(x.context(), &endpoint.Record{Name: ref.Name, Key: r.Key, Owner: owner("b")}))
	for name, call := range map[string]func() error{
		"take":   func() error { _, err := x.e().Take(x.context(), ref, owner("a")); return err },
		"put":    func() error { return x.e().Put(x.context(), ref, archive(x, file{name: "local/f"})) },
		"renew":  func() error { return x.e().Renew(x.context(), ref, endpoint.Mutable{}) },
		"stop":   func() error { _, err := x.e().Stop(x.context(), ref, "SIGTERM", 0, "late"); return err },
		"remove": func() error { return x.e().Remove(x.context(), ref) },
	} {
		test.ErrorIs(x, call(), endpoint.ErrEpoch, test.Sprint(name))
	}
	now, err := x.e().Watch(x.context(), ref)
	must.NoError(x, err)
	must.Eq(x, owner("b"), now.Owner)
	must.Eq(x, endpoint.Starting, now.State)
}
