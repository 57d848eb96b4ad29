// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// fault is a row of a table of faults. A round of four tasks runs, strike breaks something, three of the tasks end, and
// then heal repairs it. Each exit that Nomad reports must be true.
type fault struct {
	name string

	// strike causes the fault, and returns a function that repairs it.
	strike func(t *testing.T, r *round) (heal func())

	// loses names the killed processes that observe exits. If an exit has no other observer, Nomad may report it as
	// "lost".
	loses witness

	// cut means that no logmon reads the last output, so it may be missing without an event that reports this.
	cut bool

	long bool // not in the quick tests
}

type witness int

const (
	nobody     witness = iota
	supervisor         // before Linux 6.15, the kernel reports exits only to the supervisor
	everybody
)

// round is a run of four tasks.
type round struct {
	n                 *node
	goesOn, code, sig *alloc
	oom               *alloc // nil without a memory cgroup
	trigger           string // the file that ends all tasks except goesOn
	procs             map[*alloc]proc
}

func (r *round) ending() []*alloc {
	list := []*alloc{r.code, r.sig}
	if r.oom != nil {
		list = append(list, r.oom)
	}
	return list
}

// generalFaults are faults of one agent, caused one after the other.
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
		killPluginAndSupervisor(t, r) // first, because the plugin would end with the agent
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
		// pause the tasks: killing logmon would lose output that it has read but not yet written
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
	defer func() { heal() }() // in case the test ends early
	touch(t, r.trigger)
	testsupport.Within(t, time.Minute, func() error {
		for _, a := range r.ending() {
			if r.procs[a].alive() {
				return fmt.Errorf("%q has not ended", r.procs[a].args)
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
			t.Errorf("Nomad reports %q, want %q: %s", got, want, a.story())
		}
		lines, ended, err := numbered(a.output(t, "stdout"))
		test.NoError(t, err, test.Sprintf("output of the task that ended by %s, after %d lines", want, lines))
		if ended || f.cut || f.loses == everybody && a.tells("its end may be missing") == nil {
			continue
		}
		t.Errorf("the task that ended by %s: no event reports output missing after %d lines: %s", want, lines, a.story())
	}
}

// truths returns the outcomes that Nomad may report for a task whose true outcome is want.
func (f fault) truths(want string, n *node) []string {
	if f.loses == everybody || f.loses == supervisor && !n.tellsExit() {
		return []string{want, "lost"}
	}
	return []string{want}
}

// wentOn checks that the fourth task is still the same process, and that its output goes on without a gap.
func (f fault) wentOn(t *testing.T, r *round, before int) {
	t.Helper()
	must.True(t, r.procs[r.goesOn].alive(), must.Sprint("the task that should run on has ended: ", r.goesOn.story()))
	r.goesOn.printsOn(t, before, 2000)
	i, st, err := r.goesOn.info()
	must.NoError(t, err)
	if i.ClientStatus != "running" || st.State != "running" || st.Restarts != 0 {
		t.Errorf("Nomad reports the task that runs on as %s with %d restarts: %s", st.State, st.Restarts, r.goesOn.story())
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

// end stops the tasks, and checks that nothing of the round is left.
func (r *round) end(t *testing.T) {
	p := r.procs[r.goesOn]
	for _, a := range append(r.ending(), r.goesOn) {
		a.stop(t)
	}
	if got := r.goesOn.outcome(); !t.Failed() && got != "signal 2" {
		t.Errorf("Nomad reports the stop of the fourth task as %q: %s", got, r.goesOn.story())
	}
	test.False(t, p.alive(), test.Sprint("the fourth task is alive after its end"))
	test.NoError(t, testsupport.Poll(time.Minute, r.n.tasksLeft))
}

func kill(t testing.TB, n *node) { t.Helper(); inTime(t, n.Kill) }

func stop(t testing.TB, n *node) { t.Helper(); inTime(t, n.Stop) }

func inTime(t testing.TB, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must.NoError(t, f(ctx))
}

// tellsExit reports whether the kernel reports exits to processes other than the parent.
func (n *node) tellsExit() bool {
	i, _, err := n.Client().Nodes().Info(n.id(), nil)
	return err == nil && i.Attributes["driver."+n.driver+".pidfd_exit_info"] == "true"
}

// quiet waits until the task has printed nothing for a while.
func (a *alloc) quiet(t testing.TB) {
	t.Helper()
	before, _ := a.read("stdout")
	testsupport.Within(t, time.Minute, func() error {
		time.Sleep(200 * time.Millisecond) // twice as long as logmon buffers output
		now, err := a.read("stdout")
		if err == nil && now != before {
			err = fmt.Errorf("output still arrives")
		}
		before = now
		return err
	})
}

// burst is the number of tasks that are started around each kill.
const burst = 20

// onceKill kills processes in the middle of a burst.
type onceKill struct {
	name string
	kill func(t *testing.T, n *node)

	// loses means that the kill ends the plugin together with the agent, or the supervisor during a start. That process
	// may be the only observer of an exit, so Nomad may report "lost". A stopped agent also ends its plugin.
	loses bool
}

var (
	agentKilled  = onceKill{name: "agent killed", kill: func(t *testing.T, n *node) { kill(t, n); n.restart(t) }}
	agentStopped = onceKill{name: "agent stopped", loses: true,
		kill: func(t *testing.T, n *node) { stop(t, n); n.restart(t) }}
	supervisorEnded = onceKill{name: "supervisor killed", loses: true,
		kill: func(t *testing.T, n *node) { n.killAll(n.isSupervisor) }}
	bothKilled = onceKill{name: "agent and plugin killed", loses: true, kill: func(t *testing.T, n *node) {
		kill(t, n)
		n.killAll(n.isPlugin)
		n.restart(t)
	}}
	onceKills = []onceKill{
		agentKilled, agentKilled, supervisorEnded, agentKilled, agentStopped,
		agentKilled, agentKilled, agentKilled, bothKilled, agentKilled,
	}
)

func (n *node) killAll(is func(proc) bool) {
	for _, p := range n.find(is) {
		_ = unix.Kill(p.pid, unix.SIGKILL)
	}
}

// onceJob returns the job of a burst. Each task first adds a line to its own file, which shows how often it runs. It
// ends with its own exit code. Half of the tasks have a token in their environment. The others have a template, which a
// restarted agent renders again.
func onceJob(t *testing.T, dir string) *api.Job {
	j := job(t, sh(`echo x >> `+dir+`/$NOMAD_GROUP_NAME-$NOMAD_ALLOC_INDEX
		echo "$NOMAD_TOKEN$MADE_AT" | cksum; sleep 0.$((NOMAD_ALLOC_INDEX * 9)); exit $((NOMAD_ALLOC_INDEX % 5))`),
		small(burst/2))
	token := j.TaskGroups[0]
	token.Name = new("token")
	token.Tasks[0].Identity = &api.WorkloadIdentity{Env: true}
	template := api.NewTaskGroup("template", burst/2)
	template.EphemeralDisk, template.RestartPolicy, template.ReschedulePolicy = token.EphemeralDisk, token.RestartPolicy,
		token.ReschedulePolicy
	other := *token.Tasks[0]
	other.Identity = nil
	other.Templates = []*api.Template{{
		EmbeddedTmpl: new(`MADE_AT={{ timestamp "unix" }}`), DestPath: new("secrets/made"), Envvars: new(true),
		ChangeMode: new("noop"),
	}}
	return j.AddTaskGroup(template.AddTask(&other))
}

func TestTask_RunsOnceDespiteKills(t *testing.T) {
	testsupport.Long(t, "a table of faults on real agents")
	t.Parallel()
	n := newNode(t, nodeOptions{})
	for i, k := range onceKills {
		onceRound(t, n, i, k)
		must.False(t, t.Failed(), must.Sprintf("in round %d of %d: %s", i, len(onceKills), k.name))
	}
}

// onceRound runs one burst with one kill, after a random number of its tasks have begun.
func onceRound(t *testing.T, n *node, number int, k onceKill) {
	t.Helper()
	dir := filepath.Join(n.dir, fmt.Sprint("once", number))
	must.NoError(t, os.Mkdir(dir, 0o777))
	must.NoError(t, os.Chmod(dir, 0o777))
	begun := func() int { e, _ := os.ReadDir(dir); return len(e) }
	j := onceJob(t, dir)
	_, _, err := n.Client().Jobs().Register(j, nil)
	must.NoError(t, err)
	moment := rand.IntN(burst)
	testsupport.Within(t, 2*time.Minute, func() error {
		if now := begun(); now < moment {
			return fmt.Errorf("%d tasks have begun, want %d", now, moment)
		}
		return nil
	})
	time.Sleep(rand.N(60 * time.Millisecond)) // kill at any moment between two starts
	k.kill(t, n)

	for _, a := range n.allocs(t, *j.ID, burst) {
		a.ended(t)
	}
	all := n.allocs(t, *j.ID, burst)
	test.SliceLen(t, burst, all)
	for _, a := range all {
		s := a.stub(t)
		index, _ := strconv.Atoi(strings.TrimSuffix(s.Name[strings.LastIndexByte(s.Name, '[')+1:], "]"))
		b, _ := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s-%d", s.TaskGroup, index)))
		if string(b) != "x\n" {
			t.Errorf("%s at %d of %d: %s ran %d times: %s", k.name, moment, burst, s.Name, strings.Count(string(b), "x"),
				a.story())
		}
		if got := a.outcome(); got != fmt.Sprintf("exit %d", index%5) && (got != "lost" || !k.loses) {
			t.Errorf("%s at %d of %d: %s: got %q, want exit %d: %s", k.name, moment, burst, s.Name, got, index%5, a.story())
		}
		if out, err := a.read("stdout"); err != nil || strings.Count(out, "\n") != 1 {
			t.Errorf("%s at %d of %d: %s: output %q, %v", k.name, moment, burst, s.Name, out, err)
		}
	}
	test.NoError(t, testsupport.Poll(time.Minute, n.tasksLeft))
}
