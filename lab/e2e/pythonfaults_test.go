// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// The faults come one after the other to one node, whose cache keeps nothing that no
// task uses longer than to the plugin's next start. Meanwhile one task runs on.
func TestPythonFaults_LeaveEnvironmentsWhole(t *testing.T) {
	testsupport.Long(t, "a table of faults on real agents")
	t.Parallel()
	f := newPythonFaults(t)
	f.start(t)
	f.run(t, append(f.amidBuilds(), []pythonFault{
		{"plugin killed amid starts", f.pluginAmidStarts},
		{"agent killed amid starts", f.agentAmidStarts},
		{"files truncated", f.truncated},
		{"the task that ran on", f.wentOn},
		{"plugin and agent killed amid removals", f.killedAmidRemovals},
		{"nothing is kept", f.nothingKept},
	}...))
}

type pythonFault struct {
	name string
	test func(*testing.T)
}

type pythonFaults struct {
	n   *node
	dir string

	goesOn  *alloc
	process proc
	env     string // the environment of the task that goes on
}

func newPythonFaults(t *testing.T) *pythonFaults {
	n := newNode(t, nodeOptions{python: &pythonOptions{more: "cache_max_age = \"1us\"\n"}})
	return &pythonFaults{n: n, dir: mkdir(t)}
}

func (f *pythonFaults) run(t *testing.T, faults []pythonFault) {
	for _, fault := range faults {
		if !t.Run(fault.name, fault.test) {
			break
		}
	}
}

func (f *pythonFaults) amidBuilds() []pythonFault {
	return []pythonFault{
		{"plugin killed amid a build", f.pluginAmidBuild},
		{"agent killed amid a build", f.agentAmidBuild},
	}
}

// start starts the task that goes on. It has two modules, and needs the second later.
func (f *pythonFaults) start(t *testing.T) {
	wheels := wheelhouse(t, wheel.Wheel{Name: "early", Version: "1",
		Files: map[string]string{"late.py": "VERSION = 'in time'\n"}})
	f.goesOn = f.n.submit(t, py(t, code(
		"import early, os, sys, time",
		"print(sys.prefix)",
		"while not os.path.exists("+quote(f.trigger("late"))+"): time.sleep(0.05)",
		"import late",
		"print(late.VERSION)",
	).with(needs(wheels, "early"))))
	f.goesOn.running(t)
	f.goesOn.says(t, "stdout", "\n")
	f.env = strings.TrimSpace(f.goesOn.output(t, "stdout"))
	f.process = f.goesOn.pid(t)
}

func (f *pythonFaults) trigger(name string) string { return filepath.Join(f.dir, name) }

// wentOn lets the task go on to what it has not needed before.
func (f *pythonFaults) wentOn(t *testing.T) {
	_, st, err := f.goesOn.info()
	if err != nil || !f.process.alive() || st.State != "running" || st.Restarts != 0 {
		t.Fatalf("the task that goes on is %s, %d restarts: %v: %s", st.State, st.Restarts, err, f.goesOn.story())
	}
	f.endPlugin(t)
	testsupport.Within(t, time.Minute, func() error {
		if envs := f.n.cached("envs"); len(envs) != 1 || envs[0] != filepath.Base(f.env) {
			return fmt.Errorf("there are %q, want %q alone", envs, f.env)
		}
		return nil
	})
	touch(t, f.trigger("late"))
	f.goesOn.ends(t, "exit 0", f.env+"\nin time\n")
}

// endPlugin kills the plugin and waits for the next one, which looks through the cache.
func (f *pythonFaults) endPlugin(t *testing.T) (next proc) {
	t.Helper()
	old := f.n.plugin(t)
	old.end(t)
	return f.n.nextPlugin(t, old)
}

// amidBuild is a job whose environment is just being built, and the processes of that.
func (f *pythonFaults) amidBuild(t *testing.T, name string) (*alloc, *heldIndex, map[string]proc) {
	index := holdIndex(t, wheel.Wheel{Name: name, Version: "5"})
	a := f.n.submit(t, py(t, version(name).with(conf{"requirements": []string{name}, "index_url": index.url})))
	index.wait(t, a)
	installers := f.installers()
	must.MapNotEmpty(t, installers, must.Sprint("no process of the installer is found"))
	return a, index, installers
}

func (f *pythonFaults) installers() map[string]proc {
	found := map[string]proc{}
	for _, p := range f.n.installers() {
		found[fmt.Sprintf("%.200q", strings.Join(p.args, " "))] = p
	}
	return found
}

func (f *pythonFaults) pluginAmidBuild(t *testing.T) {
	a, index, installers := f.amidBuild(t, "amid_plugin")
	f.n.plugin(t).end(t)
	gone(t, installers)
	index.wait(t, a) // by itself: Nomad asks the next plugin
	index.release()
	a.ends(t, "exit 0", "amid_plugin 5\n")
	testsupport.Within(t, time.Minute, f.noInstaller)
}

func (f *pythonFaults) agentAmidBuild(t *testing.T) {
	a, index, installers := f.amidBuild(t, "amid_agent")
	kill(t, f.n)
	gone(t, installers) // with the agent, whether the plugin notices its end already or not
	testsupport.Within(t, time.Minute, f.noInstaller)
	f.n.restart(t)
	index.release()
	a.ends(t, "exit 0", "amid_agent 5\n")
	testsupport.Within(t, time.Minute, f.noInstaller)
}

func (f *pythonFaults) noInstaller() error {
	if left := f.n.installers(); len(left) > 0 {
		return fmt.Errorf("installers are left: %v", left)
	}
	return nil
}

// starts are the tasks of a job that was just submitted. Each notes that it runs, and waits.
type starts struct {
	*pythonFaults
	name   string
	before []string // the directories of other tasks
	allocs []*alloc
}

func (f *pythonFaults) starting(t *testing.T, name string, wheels string, count int) *starts {
	t.Helper()
	s := &starts{pythonFaults: f, name: name, before: f.n.taskDirs()}
	j := py(t, code(
		"import os, starts, time",
		"log = os.open("+quote(f.trigger(name))+" + os.environ['NOMAD_ALLOC_INDEX'], os.O_WRONLY | os.O_APPEND)",
		"since = open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19]",
		"os.write(log, b'%d %s\\n' % (os.getpid(), since.encode()))",
		"while not os.path.exists("+quote(f.trigger(name+"-go"))+"): time.sleep(0.05)",
		"print(starts.VERSION)",
	).with(needs(wheels, "starts")), func(j *api.Job, _ *api.Task) {
		j.TaskGroups[0].Count = &count
	})
	for i := range count {
		path := f.trigger(name) + strconv.Itoa(i)
		touch(t, path)
		must.NoError(t, os.Chmod(path, 0o666))
	}
	f.n.submit(t, j)
	s.allocs = f.n.allocs(t, *j.ID, count)
	// before they have directories, Nomad gives up what comes to a plugin that is killed
	s.await(t, func() bool {
		for _, a := range s.allocs {
			if _, err := os.Stat(a.dir()); err != nil {
				return false
			}
		}
		return true
	})
	return s
}

// await is for what may be over soon.
func (s *starts) await(t *testing.T, what func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nothing comes of %s: %s", s.name, s.allocs[0].story())
		}
	}
}

// notes are what the processes of the task with this index have noted.
func (s *starts) notes(t *testing.T, index int) []string {
	t.Helper()
	b, err := os.ReadFile(s.trigger(s.name) + strconv.Itoa(index))
	must.NoError(t, err)
	return slices.Collect(strings.Lines(string(b)))
}

// progress says how many tasks the plugin has begun to start, and how many of their programs run.
func (s *starts) progress(t *testing.T) (begun, run int) {
	t.Helper()
	for i := range s.allocs {
		if len(s.notes(t, i)) > 0 {
			run++
		}
	}
	for _, dir := range s.n.taskDirs() {
		if !slices.Contains(s.before, dir) {
			begun++
		}
	}
	return begun, run
}

// eachOnce checks that of each task exactly one process runs, and lets them end.
func (s *starts) eachOnce(t *testing.T) {
	t.Helper()
	for i, a := range s.allocs {
		// the allocations are in no order; their files are
		testsupport.Within(t, 2*time.Minute, func() error {
			for _, note := range s.notes(t, i) {
				var p proc
				if _, err := fmt.Sscan(note, &p.pid, &p.start); err == nil && p.alive() {
					return nil
				}
			}
			return fmt.Errorf("task %d has not started: %s", i, a.story())
		})
		a.held(t)
	}
	testsupport.Within(t, time.Minute, func() error {
		running := 0
		for _, p := range s.n.processes() {
			if !s.n.infrastructure(p) && p.pid != s.process.pid {
				running++
			}
		}
		if running != len(s.allocs) {
			return fmt.Errorf("%d processes of %d tasks", running, len(s.allocs))
		}
		return nil
	})
	touch(t, s.trigger(s.name+"-go"))
	for _, a := range s.allocs {
		a.ends(t, "exit 0", "6\n")
	}
}

func (f *pythonFaults) pluginAmidStarts(t *testing.T) {
	f.amidStarts(t, "plugin", 4, func(plugin proc) { plugin.end(t) }, func() {})
}

func (f *pythonFaults) agentAmidStarts(t *testing.T) {
	f.amidStarts(t, "agent", 2, func(proc) { kill(t, f.n) }, func() { f.n.restart(t) })
}

// amidStarts strikes while tasks start: that often, and more often where that was too
// late for all of them.
func (f *pythonFaults) amidStarts(t *testing.T, who string, rounds int, strike func(plugin proc), heal func()) {
	wheels := wheelhouse(t, wheel.Wheel{Name: "starts", Version: "6"})
	f.n.submit(t, py(t, version("starts").with(needs(wheels, "starts")))).ends(t, "exit 0", "starts 6\n")
	hits, round := 0, 0
	for ; round < rounds || hits == 0; round++ {
		must.NotEq(t, rounds+30, round,
			must.Sprintf("the %s was killed %d times, and never amid a start: the test proves nothing", who, round))
		plugin := f.n.plugin(t)
		s := f.starting(t, fmt.Sprintf("starts-%s-%d", who, round), wheels, 3)
		s.await(t, func() bool { begun, _ := s.progress(t); return begun > 0 })
		time.Sleep(rand.N(50 * time.Millisecond))
		strike(plugin)
		if begun, run := s.progress(t); run < begun {
			hits++
		}
		heal()
		s.eachOnce(t)
	}
	t.Logf("the %s was killed amid a start in %d of %d rounds", who, hits, round)
}

// killedAmidRemovals kills the plugin, and then the agent with it, while it removes environments of which
// each has many files, and asks for them at once. No task runs: Nomad gives up those that it
// re-attaches to while the plugin is killed.
func (f *pythonFaults) killedAmidRemovals(t *testing.T) {
	const many, files = 4, 1500
	var large []wheel.Wheel
	for i := range many {
		w := wheel.Wheel{Name: fmt.Sprintf("large%d", i), Version: "7", Files: map[string]string{}}
		for k := range files {
			w.Files[fmt.Sprintf("large%d_data/%d", i, k)] = "x"
		}
		large = append(large, w)
	}
	wheels := wheelhouse(t, large...)
	use := func() {
		t.Helper()
		var all []*alloc
		for i := range many {
			name := fmt.Sprintf("large%d", i)
			all = append(all, f.n.submit(t, py(t, code(
				"import os, "+name,
				"data = os.path.join(os.path.dirname("+name+".__file__), '"+name+"_data')",
				"print("+name+".VERSION, sum(open(os.path.join(data, f)).read() == 'x' for f in os.listdir(data)))",
			).with(needs(wheels, name)))))
		}
		for _, a := range all {
			a.ends(t, "exit 0", fmt.Sprintf("7 %d\n", files))
		}
	}
	for _, fault := range []struct {
		who    string
		strike func(plugin proc)
		heal   func(plugin proc)
	}{
		{"plugin", func(plugin proc) { plugin.end(t) }, func(plugin proc) { f.n.nextPlugin(t, plugin) }},
		{"agent", func(proc) { kill(t, f.n) }, func(proc) { f.n.restart(t) }},
	} {
		for round := 1; ; round++ {
			use()
			plugin := f.endPlugin(t)
			hit := f.amidRemoval(t)
			if hit {
				time.Sleep(rand.N(20 * time.Millisecond))
				resume := plugin.pause(t) // while the test looks and strikes, it may be done on a busy machine
				hit = len(f.removals()) > 0
				fault.strike(plugin)
				resume()
				fault.heal(plugin)
			}
			if hit {
				t.Logf("the %s was killed amid a removal in round %d", fault.who, round)
				break
			}
			must.NotEq(t, 30, round,
				must.Sprintf("the %s was never killed amid a removal, %d times: the test proves nothing", fault.who, round))
		}
		use()
	}
}

// amidRemoval returns when something is being removed, or, false, when all has been.
func (f *pythonFaults) amidRemoval(t *testing.T) bool {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		left := f.n.cached("envs")
		if len(f.removals()) > 0 {
			return true
		}
		if len(left) == 0 {
			return false
		}
		must.False(t, time.Now().After(end), must.Sprintf("nothing is removed: %q", left))
	}
}

// removals are the environments that are being removed, or were when their remover was killed: they have no record any
// more.
func (f *pythonFaults) removals() []string {
	records := ""
	for _, name := range f.n.cached("meta") {
		content, _ := os.ReadFile(filepath.Join(f.n.cache("meta"), name))
		records += string(content)
	}
	return slices.DeleteFunc(f.n.cached("envs"), func(id string) bool { return strings.Contains(records, id) })
}

func (f *pythonFaults) truncated(t *testing.T) {
	c := code("import damaged", "print(damaged.VERSION, damaged.__file__)").
		with(needs(wheelhouse(t, wheel.Wheel{Name: "damaged", Version: "8"}), "damaged"))
	a := f.n.submit(t, py(t, c))
	a.ended(t)
	out := a.output(t, "stdout")
	path, ok := strings.CutPrefix(strings.TrimSpace(out), "8 ")
	if !ok {
		t.Fatalf("got %q: %s", out, a.story())
	}
	must.NoError(t, os.Chmod(path, 0o644))
	must.NoError(t, os.Truncate(path, 0))
	b := f.n.submit(t, py(t, c))
	if got := b.ended(t); got != "exit 0" || !strings.HasPrefix(b.output(t, "stdout"), "8 ") {
		t.Errorf("got %s, %q: %s", got, b.output(t, "stdout"), b.story())
	}
	test.NoError(t, b.tells("not in the cache"))
}

// nothingKept asks that the plugin's next start leaves nothing of a cache that no task uses.
func (f *pythonFaults) nothingKept(t *testing.T) {
	testsupport.Within(t, time.Minute, f.n.tasksLeft)
	f.endPlugin(t)
	testsupport.Within(t, time.Minute, func() error {
		for _, dir := range []string{"envs", "meta", "users", "builds"} {
			if left := f.n.cached(dir); len(left) > 0 {
				return fmt.Errorf("%s has %q", dir, left)
			}
		}
		return nil
	})
}
