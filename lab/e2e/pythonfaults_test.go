package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// The faults come one after the other to one node, whose cache keeps nothing that no
// task uses longer than to the plugin's next start. Meanwhile one task runs on.
func TestPythonEnvironmentsThroughFaults(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeOptions{python: &pythonOptions{more: "cache_max_age = \"1us\"\nallow_sdists = true"}})
	f := &pythonFaults{n: n, dir: mkdir(t)}
	f.start(t)
	for _, row := range []struct {
		name string
		test func(*testing.T)
	}{
		{"plugin killed amid a build", f.pluginAmidBuild},
		{"plugin killed amid a build of source", f.pluginAmidSource},
		{"agent killed amid a build", f.agentAmidBuild},
		{"plugin killed amid starts", f.pluginAmidStarts},
		{"agent killed amid starts", f.agentAmidStarts},
		{"files truncated", f.truncated},
		{"the task that ran on", f.wentOn},
		{"plugin and agent killed amid removals", f.killedAmidRemovals},
		{"nothing is kept", f.nothingKept},
	} {
		if !t.Run(row.name, row.test) {
			break
		}
	}
}

type pythonFaults struct {
	n   *node
	dir string

	goesOn  *alloc
	process proc
	env     string // the environment of the task that goes on
}

// start starts the task that goes on. It has two modules, and needs the second later.
func (f *pythonFaults) start(t *testing.T) {
	wheels := wheelhouse(t, wheel{name: "early", version: "1", files: map[string]string{"late.py": "VERSION = 'in time'\n"}})
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
	eventually(t, 20*time.Second, func() error {
		if envs := f.n.cached("envs"); len(envs) != 1 || envs[0] != filepath.Base(f.env) {
			return fmt.Errorf("there are %q, want %q alone", envs, f.env)
		}
		return nil
	})
	touch(t, f.trigger("late"))
	f.goesOn.ends(t, "exit 0", f.env+"\nin time\n")
}

// endPlugin kills the plugin and waits for the next one, which looks through the cache.
func (f *pythonFaults) endPlugin(t *testing.T) {
	t.Helper()
	old := f.n.plugin(t)
	old.end(t)
	eventually(t, 20*time.Second, func() error {
		if p := f.n.find(f.n.isPlugin); len(p) != 1 || p[0].pid == old.pid {
			return fmt.Errorf("no new plugin: %v", p)
		}
		return nil
	})
}

// amidBuild is a job whose environment is just being built, and the processes of that.
func (f *pythonFaults) amidBuild(t *testing.T, name string) (*alloc, *heldIndex, map[string]proc) {
	index := holdIndex(t, wheel{name: name, version: "5"})
	a := f.n.submit(t, py(t, version(name).with(conf{"requirements": []string{name}, "index_url": index.url})))
	index.wait(t, a)
	installers := f.installers()
	if len(installers) == 0 {
		t.Fatal("no process of the installer is found")
	}
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
	eventually(t, 10*time.Second, f.noInstaller)
}

// pluginAmidSource kills the plugin while a package's own code runs, which does not end
// by itself as an installer without a network does, and has left something behind.
func (f *pythonFaults) pluginAmidSource(t *testing.T) {
	if f.n.builder == 0 {
		t.Skip("only root can have a PID namespace, with which all ends that is in it")
	}
	trigger := f.trigger("source")
	wheels := mkdir(t)
	wheel{name: "amid_source", version: "9"}.writeSource(t, wheels, strings.Join([]string{
		"import os, subprocess, sys, time",
		"if not os.path.exists(" + quote(trigger) + "):",
		"    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True,",
		"        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)",
		"while not os.path.exists(" + quote(trigger) + "): time.sleep(0.05)",
	}, "\n"))
	building := func(a *alloc) (installers map[string]proc) {
		t.Helper()
		eventually(t, 40*time.Second, func() error {
			installers = f.installers()
			for args := range installers {
				if strings.Contains(args, "time.sleep(600)") {
					return nil
				}
			}
			return fmt.Errorf("the package's code does not run: %s", a.story())
		})
		return installers
	}
	a := f.n.submit(t, py(t, version("amid_source").with(needs(wheels, "amid_source"))))
	installers := building(a)
	f.n.plugin(t).end(t)
	gone(t, installers)
	building(a) // by itself: Nomad asks the next plugin
	touch(t, trigger)
	a.ends(t, "exit 0", "amid_source 9\n")
	eventually(t, 10*time.Second, f.noInstaller)
}

func (f *pythonFaults) agentAmidBuild(t *testing.T) {
	a, index, installers := f.amidBuild(t, "amid_agent")
	kill(t, f.n)
	gone(t, installers) // with the agent, whether the plugin notices its end already or not
	if err := f.noInstaller(); err != nil {
		t.Error(err)
	}
	f.n.restart(t)
	index.release()
	a.ends(t, "exit 0", "amid_agent 5\n")
	eventually(t, 10*time.Second, f.noInstaller)
}

func (f *pythonFaults) noInstaller() error {
	if left := f.n.installers(); len(left) > 0 {
		return fmt.Errorf("installers are left: %v", left)
	}
	return nil
}

// starting are jobs that were just submitted. Each notes that it runs, and waits.
func (f *pythonFaults) starting(t *testing.T, name string, wheels string, count int) []*alloc {
	t.Helper()
	j := py(t, code(
		"import os, starts, time",
		"log = os.open("+quote(f.trigger(name))+" + os.environ['NOMAD_ALLOC_INDEX'], os.O_WRONLY | os.O_APPEND)",
		"os.write(log, b'%d\\n' % os.getpid())",
		"while not os.path.exists("+quote(f.trigger(name+"-go"))+"): time.sleep(0.05)",
		"print(starts.VERSION)",
	).with(needs(wheels, "starts")), func(j *api.Job, _ *api.Task) {
		j.TaskGroups[0].Count = &count
	})
	for i := range count {
		path := f.trigger(name) + strconv.Itoa(i)
		touch(t, path)
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	f.n.submit(t, j)
	all := f.n.allocs(t, *j.ID, count)
	for _, a := range all { // before, Nomad gives up what comes to a plugin that is killed
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(a.dir()); err == nil {
				break
			} else if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	return all
}

// eachOnce checks that of each task exactly one process runs, and lets them end.
func (f *pythonFaults) eachOnce(t *testing.T, name string, all []*alloc) {
	t.Helper()
	for i, a := range all {
		var alive []string
		// the allocations are in no order; their files are
		eventually(t, 30*time.Second, func() error {
			alive = nil
			b, err := os.ReadFile(f.trigger(name) + strconv.Itoa(i))
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(b)) {
				pid, _ := strconv.Atoi(strings.TrimSpace(line))
				if _, err := readProc(pid); err == nil {
					alive = append(alive, strings.TrimSpace(line))
				}
			}
			if len(alive) == 0 {
				return fmt.Errorf("task %d has not started: %s", i, a.story())
			}
			return nil
		})
		a.held(t)
	}
	eventually(t, 10*time.Second, func() error {
		running := 0
		for _, p := range f.n.processes() {
			if !f.n.infrastructure(p) && p.pid != f.process.pid {
				running++
			}
		}
		if running != len(all) {
			return fmt.Errorf("%d processes of %d tasks", running, len(all))
		}
		return nil
	})
	touch(t, f.trigger(name+"-go"))
	for _, a := range all {
		a.ends(t, "exit 0", "6\n")
	}
}

func (f *pythonFaults) pluginAmidStarts(t *testing.T) {
	wheels := wheelhouse(t, wheel{name: "starts", version: "6"})
	f.n.submit(t, py(t, version("starts").with(needs(wheels, "starts")))).ends(t, "exit 0", "starts 6\n")
	for round := range 4 {
		name := fmt.Sprintf("starts-plugin-%d", round)
		all := f.starting(t, name, wheels, 3)
		time.Sleep(rand.N(200 * time.Millisecond))
		f.n.plugin(t).end(t)
		f.eachOnce(t, name, all)
	}
}

func (f *pythonFaults) agentAmidStarts(t *testing.T) {
	wheels := wheelhouse(t, wheel{name: "starts", version: "6"})
	for round := range 2 {
		name := fmt.Sprintf("starts-agent-%d", round)
		all := f.starting(t, name, wheels, 3)
		time.Sleep(rand.N(200 * time.Millisecond))
		kill(t, f.n)
		f.n.restart(t)
		f.eachOnce(t, name, all)
	}
}

// killedAmidRemovals kills the plugin, and then the agent with it, while it removes environments of which
// each has many files, and asks for them at once. No task runs: Nomad gives up those that it
// re-attaches to while the plugin is killed.
func (f *pythonFaults) killedAmidRemovals(t *testing.T) {
	const many, files = 4, 1500
	wheels := mkdir(t)
	for i := range many {
		w := wheel{name: fmt.Sprintf("large%d", i), version: "7", files: map[string]string{}}
		for k := range files {
			w.files[fmt.Sprintf("large%d_data/%d", i, k)] = "x"
		}
		w.write(t, wheels)
	}
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
	use()
	for _, strike := range []func(){
		func() { f.endPlugin(t) },
		func() { kill(t, f.n); f.n.restart(t) },
	} {
		f.endPlugin(t)
		f.awaitRemoval(t)
		time.Sleep(rand.N(20 * time.Millisecond))
		strike()
		use()
	}
}

// awaitRemoval returns when something is being removed.
func (f *pythonFaults) awaitRemoval(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		for _, name := range f.n.cached("builds") {
			if strings.HasPrefix(name, "trash.") {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("nothing is removed: %q", f.n.cached("envs"))
		}
	}
}

func (f *pythonFaults) truncated(t *testing.T) {
	c := code("import damaged", "print(damaged.VERSION, damaged.__file__)").
		with(needs(wheelhouse(t, wheel{name: "damaged", version: "8"}), "damaged"))
	a := f.n.submit(t, py(t, c))
	a.ended(t)
	out := a.output(t, "stdout")
	path, ok := strings.CutPrefix(strings.TrimSpace(out), "8 ")
	if !ok {
		t.Fatalf("got %q: %s", out, a.story())
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	b := f.n.submit(t, py(t, c))
	if got := b.ended(t); got != "exit 0" || !strings.HasPrefix(b.output(t, "stdout"), "8 ") {
		t.Errorf("got %s, %q: %s", got, b.output(t, "stdout"), b.story())
	}
	if err := b.tells("not in the cache"); err != nil {
		t.Error(err)
	}
}

// nothingKept asks that the plugin's next start leaves nothing of a cache that no task uses.
func (f *pythonFaults) nothingKept(t *testing.T) {
	eventually(t, 20*time.Second, f.n.tasksLeft)
	f.endPlugin(t)
	eventually(t, 20*time.Second, func() error {
		for _, dir := range []string{"envs", "meta", "users", "builds"} {
			if left := f.n.cached(dir); len(left) > 0 {
				return fmt.Errorf("%s has %q", dir, left)
			}
		}
		return nil
	})
}
