// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// fault is one row of the table: something breaks while four tasks run, three of
// them end before anybody can put it right, and then it is put right. Whatever
// Nomad tells of the exits has to be true.
type fault struct {
	name string

	// strike breaks it, and returns what puts it right.
	strike func(t *testing.T, r *round) (heal func())

	// loses says who is lost that could have seen the exits. Where it is everybody,
	// "lost" is a true answer besides the exact one.
	loses witness

	// cut says that the end of the output may be missing, and nobody says so: what is written while no logmon runs has
	// nobody to go to.
	cut bool

	long bool // not in the quick tests
}

type witness int

const (
	nobody     witness = iota // somebody saw it
	supervisor                // a kernel before 6.15 tells nobody but the supervisor
	everybody
)

// round is a run of four tasks.
type round struct {
	n                 *node
	goesOn, code, sig *alloc
	oom               *alloc // nil where there is no memory cgroup
	trigger           string // the file that ends the three
	procs             map[*alloc]proc
}

func (r *round) ending() []*alloc {
	list := []*alloc{r.code, r.sig}
	if r.oom != nil {
		list = append(list, r.oom)
	}
	return list
}

// The faults of one agent, one after the other.
var generalFaults = []fault{
	{name: "none", strike: func(*testing.T, *round) func() { return func() {} }},
	{name: "plugin killed", strike: func(t *testing.T, r *round) func() {
		resume := r.n.process(t).pause(t)
		r.n.plugin(t).end(t)
		return resume
	}},
	{name: "supervisor killed", loses: supervisor, strike: func(t *testing.T, r *round) func() {
		resume := r.n.plugin(t).pause(t)
		r.n.supervisor(t).end(t)
		return resume
	}},
	{name: "agent killed", strike: func(t *testing.T, r *round) func() {
		kill(t, r.n)
		return func() { r.n.restart(t) }
	}},
	{name: "agent restarted", strike: func(t *testing.T, r *round) func() {
		stop(t, r.n)
		return func() { r.n.restart(t) }
	}},
	{name: "plugin and supervisor killed", loses: everybody, strike: killPluginAndSupervisor},
	{name: "agent, plugin and supervisor killed", loses: everybody, strike: func(t *testing.T, r *round) func() {
		killPluginAndSupervisor(t, r) // before the agent, with which the plugin ends
		kill(t, r.n)
		return func() { r.n.restart(t) }
	}},
}

func killPluginAndSupervisor(t *testing.T, r *round) func() {
	resume := r.n.process(t).pause(t)
	r.n.plugin(t).end(t)
	r.n.supervisor(t).end(t)
	return resume
}

var logmonFaults = []fault{
	{name: "logmon killed, agent restarted", cut: true, strike: func(t *testing.T, r *round) func() {
		// what logmon has read and not written dies with it: nothing may be under way
		var resume []func()
		for _, p := range r.procs {
			resume = append(resume, p.pause(t))
		}
		for _, a := range append(r.ending(), r.goesOn) {
			a.quiet(t)
		}
		for _, p := range r.n.find(isLogmon) {
			p.end(t)
		}
		for _, f := range resume {
			f()
		}
		return func() { stop(t, r.n); r.n.restart(t) }
	}},
	{name: "plugin and supervisor killed", loses: everybody, strike: killPluginAndSupervisor, cut: true},
}

func TestFaults_ExitIsExactOrLost(t *testing.T) {
	testsupport.Long(t, "a table of faults on real agents")
	for _, group := range []struct {
		name   string
		o      nodeOptions
		faults []fault
	}{
		{"processes", nodeOptions{}, generalFaults},
		{"logmon", nodeOptions{plugin: `log_collection = "nomad"`}, logmonFaults},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			node := sync.OnceValue(func() *node { return newNode(t, group.o) })
			for _, f := range group.faults {
				t.Run(f.name, func(t *testing.T) {
					f.run(t, node())
				})
			}
		})
	}
}

func (f fault) run(t *testing.T, n *node) {
	r := newRound(t, n)
	defer r.end(t)
	before, _ := r.goesOn.read("stdout")
	heal := f.strike(t, r)
	defer func() { heal() }() // should the test end early
	touch(t, r.trigger)
	testsupport.Within(t, time.Minute, func() error {
		for _, a := range r.ending() {
			if r.procs[a].alive() {
				return fmt.Errorf("%q does not end", r.procs[a].args)
			}
		}
		return nil
	})
	heal()
	heal = func() {}

	f.wentOn(t, r, len(before))
	for i, a := range []*alloc{r.code, r.sig, r.oom} {
		if a == nil { // without a memory cgroup
			continue
		}
		want := []string{"exit 7", "signal 15", "oom"}[i]
		got := a.ended(t)
		if !slices.Contains(f.truths(want, n), got) {
			t.Errorf("Nomad tells %q, want %q: %s", got, want, a.story())
		}
		lines, ended, err := numbered(a.output(t, "stdout"))
		test.NoError(t, err, test.Sprintf("output of the task that ended by %s, after %d lines", want, lines))
		if ended || f.cut || f.loses == everybody && a.tells("its end may be missing") == nil {
			continue
		}
		t.Errorf("the task that ended by %s: nobody says that after %d lines output is missing: %s", want, lines, a.story())
	}
}

// truths are the answers that are right.
func (f fault) truths(want string, n *node) []string {
	if f.loses == everybody || f.loses == supervisor && !n.tellsExit() {
		return []string{want, "lost"}
	}
	return []string{want}
}

// wentOn checks that the task that was not told to end is the same as before and
// that its output goes on without a gap.
func (f fault) wentOn(t *testing.T, r *round, before int) {
	t.Helper()
	must.True(t, r.procs[r.goesOn].alive(), must.Sprint("the task that should go on is dead: ", r.goesOn.story()))
	testsupport.Within(t, time.Minute, func() error {
		out, err := r.goesOn.read("stdout")
		if err != nil {
			return err
		}
		if len(out) < before+2000 {
			return fmt.Errorf("%d bytes of output after %d", len(out), before)
		}
		_, _, err = numbered(out)
		return err
	})
	i, st, err := r.goesOn.info()
	must.NoError(t, err)
	if i.ClientStatus != "running" || st.State != "running" || st.Restarts != 0 {
		t.Errorf("the task that goes on is %s for Nomad, %d restarts: %s", st.State, st.Restarts, r.goesOn.story())
	}
}

func newRound(t *testing.T, n *node) *round {
	r := &round{n: n, trigger: filepath.Join(n.dir, fmt.Sprintf("go-%d", jobNumber.Add(1))), procs: map[*alloc]proc{}}
	count := func(args ...string) *alloc {
		return n.submit(t, job(t, conf{"command": counter, "args": args}, n.where))
	}
	r.goesOn = count()
	r.code = count("-until", r.trigger, "-then", "exit:7")
	r.sig = count("-until", r.trigger, "-then", "signal:15")
	if hasMemoryCgroup() && !n.bare {
		r.oom = count("-until", r.trigger, "-then", "oom")
	}
	for _, a := range append(r.ending(), r.goesOn) {
		a.running(t)
		a.says(t, "stdout", "line 20")
		a.held(t)
		r.procs[a] = a.pid(t)
	}
	return r
}

// end stops what goes on and asks that nothing of the round is left.
func (r *round) end(t *testing.T) {
	p := r.procs[r.goesOn]
	if got := r.stop(t); !t.Failed() && got != "signal 2" {
		t.Errorf("the task that goes on was stopped; Nomad tells %q: %s", got, r.goesOn.story())
	}
	test.False(t, p.alive(), test.Sprint("the task that goes on lives after its end"))
	test.NoError(t, testsupport.Poll(time.Minute, r.n.tasksLeft))
}

func (r *round) stop(t *testing.T) string {
	for _, a := range append(r.ending(), r.goesOn) {
		_, _, err := r.n.Client().Jobs().Deregister(a.job, false, nil)
		test.NoError(t, err)
	}
	return r.goesOn.ended(t)
}

func kill(t testing.TB, n *node) { t.Helper(); inTime(t, n.Kill) }

func stop(t testing.TB, n *node) { t.Helper(); inTime(t, n.Stop) }

func inTime(t testing.TB, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must.NoError(t, f(ctx))
}

// tellsExit says whether the kernel tells an exit to others than the parent.
func (n *node) tellsExit() bool {
	nodes, _, err := n.Client().Nodes().List(nil)
	if err != nil || len(nodes) == 0 {
		return false
	}
	i, _, err := n.Client().Nodes().Info(nodes[0].ID, nil)
	return err == nil && i.Attributes["driver."+n.driver+".pidfd_exit_info"] == "true"
}

// quiet waits until no more output comes.
func (a *alloc) quiet(t testing.TB) {
	t.Helper()
	before, _ := a.read("stdout")
	testsupport.Within(t, time.Minute, func() error {
		time.Sleep(200 * time.Millisecond) // twice as long as logmon holds it
		now, err := a.read("stdout")
		if err == nil && now != before {
			err = fmt.Errorf("output still comes")
		}
		before = now
		return err
	})
}
