// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// pythonOptions configure the python driver of a node.
type pythonOptions struct {
	cache string // another node's cache; empty: its own
	more  string // additional configuration
}

func (o *pythonOptions) config(builder int) string {
	c := fmt.Sprintf("cache_dir = %q\n", cmp.Or(o.cache, "${state_dir}/environments")) + o.more
	if builder != 0 {
		c += fmt.Sprintf("\nbuild_user = \"%d\"", builder)
	}
	return c
}

var builders atomic.Int64

// newBuilder returns the ID of a user for one node's builds. No other node on this machine gets the ID, so processes of
// the user belong to the node. The user has no account.
func newBuilder() int { return 1<<30 + os.Getpid()<<6 + int(builders.Add(1)) }

// py returns a batch job with one Python program.
func py(t testing.TB, c conf, edit ...func(*api.Job, *api.Task)) *api.Job {
	t.Helper()
	return job(t, c, append([]func(*api.Job, *api.Task){asDriver("python"), withMemory(48)}, edit...)...)
}

func withMemory(mb int) func(*api.Job, *api.Task) {
	return func(_ *api.Job, task *api.Task) { task.Resources.MemoryMB = &mb }
}

// needs returns options for requirements that are installed only from a directory of wheels.
func needs(wheels string, requirements ...string) conf {
	return conf{"requirements": requirements, "find_links": []string{wheels}, "offline": true}
}

// code returns the configuration of a task that runs these lines.
func code(lines ...string) conf { return conf{"code": strings.Join(lines, "\n") + "\n"} }

// cache returns a path in the directory of the node's environments.
func (n *node) cache(part ...string) string {
	return filepath.Join(append([]string{n.StateDir(), "environments"}, part...)...)
}

// cached lists one of the cache's directories.
func (n *node) cached(dir string) []string {
	entries, _ := os.ReadDir(n.cache(dir))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// installers returns the processes that build environments: those of the node's build user, and those with a path of a
// build or download in their arguments.
func (n *node) installers() []proc {
	if n.driver != "python" {
		return nil
	}
	var found []proc
	for _, p := range allProcs() {
		builds := slices.ContainsFunc(p.args, func(a string) bool {
			return strings.Contains(a, n.cache("builds")) || strings.Contains(a, n.cache("downloads"))
		})
		if builds || n.builder != 0 && int(statusOf(p.pid).UIDs[1]) == n.builder {
			found = append(found, p)
		}
	}
	return found
}

// cacheMounts returns mounts of the cache outside the tasks' mount namespaces.
func (n *node) cacheMounts() []string {
	if n.driver != "python" {
		return nil
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	var found []string
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, n.cache()) {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	return found
}

// allocs waits until a job has at least count allocations.
func (n *node) allocs(t testing.TB, job string, count int) (all []*alloc) {
	t.Helper()
	for _, s := range nomadtest.Allocs(t, n.Client(), job, count) {
		all = append(all, &alloc{n: n, id: s.ID, job: job})
	}
	return all
}

// ends waits for a task's end, and checks its outcome and its whole output.
func (a *alloc) ends(t testing.TB, how, out string) {
	t.Helper()
	if got := a.ended(t); got != how {
		stderr, _ := a.read("stderr") // fails if the task was not started
		t.Errorf("%s: got %q, want %q: %s\n%s", a.job, got, how, a.story(), stderr)
		return
	}
	test.Eq(t, out, a.output(t, "stdout"), test.Sprintf("%s prints", a.job))
}

// builds waits for an event about the task's environment, and returns how many events report a build, not a cache hit.
func (a *alloc) builds(t testing.TB) int {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		if s := a.story(); !strings.Contains(s, ": built in ") && !strings.Contains(s, ": cache hit") {
			return fmt.Errorf("no event of the environment: %s", s)
		}
		return nil
	})
	return strings.Count(a.story(), ": built in ")
}

// wheelhouse returns a directory with these wheels, which every user can read.
func wheelhouse(t testing.TB, wheels ...wheel.Wheel) string {
	t.Helper()
	dir := mkdir(t)
	for _, w := range wheels {
		must.NoError(t, w.Write(dir))
	}
	return dir
}

// Two agents share one environment. One of them, and an operator's command, remove environments that no task uses.
func TestPythonCache_IsSharedByTwoAgents(t *testing.T) {
	testsupport.Long(t, "two agents")
	t.Parallel()
	first := newNode(t, nodeOptions{python: &pythonOptions{}})
	second := newNode(t, nodeOptions{python: &pythonOptions{cache: first.cache(), more: "cache_max_age = \"1us\"\n"}})
	wheels := wheelhouse(t, wheel.Wheel{Name: "early", Version: "1",
		Files: map[string]string{"late.py": "VERSION = 'in time'\n"}})
	dir := mkdir(t)
	submit := func(n *node, trigger string) *alloc {
		return n.submit(t, py(t, code(
			"import early, os, sys, time",
			"print(sys.prefix, flush=True)",
			"while not os.path.exists("+quote(filepath.Join(dir, trigger))+"): time.sleep(0.05)",
			"import late",
			"print(late.VERSION)",
		).with(needs(wheels, "early"))))
	}
	one, two := submit(first, "one"), submit(second, "two")
	one.running(t)
	two.running(t)
	one.says(t, "stdout", "\n")
	env := strings.TrimSpace(one.output(t, "stdout"))
	builds := 0
	for _, a := range []*alloc{one, two} {
		builds += a.builds(t)
	}
	test.Eq(t, 1, builds)

	touch(t, filepath.Join(dir, "two"))
	two.ends(t, "exit 0", env+"\nin time\n")
	for _, n := range []*node{first, second} { // the next plugin cleans up the cache at its start
		old := n.plugin(t)
		old.end(t)
		n.another(t, n.isPlugin, old)
	}
	test.SliceEmpty(t, second.prune(t, first.cache()))
	test.Eq(t, []string{filepath.Base(env)}, first.cached("envs"))
	touch(t, filepath.Join(dir, "one"))
	one.ends(t, "exit 0", env+"\nin time\n")
	one.stop(t)
	testsupport.Within(t, 2*time.Minute, func() error {
		second.prune(t, first.cache())
		if left := first.cached("envs"); len(left) > 0 {
			return fmt.Errorf("%q are left without a task", left)
		}
		return nil
	})
}

// prune runs the plugin's command that removes unused environments from a cache, and returns the removed ones.
func (n *node) prune(t *testing.T, cache string) (removed []any) {
	t.Helper()
	binary, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", n.plugin(t).pid))
	must.NoError(t, err)
	out, err := exec.Command(binary, "cache", "prune", "-json", "-dir", cache).Output()
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(out, &removed))
	return removed
}

const pythonExamples = "../../plugins/python/example"

// pythonExampleJobs has a check for each example job, by the name of its file.
var pythonExampleJobs = map[string]func(*testing.T, *alloc){
	"web":        webExample,
	"wheelhouse": endsWith("exit 0", ": built in ", `^Wed 21 Feb 2024 (.*\n){7}$`, `% lit  full moon\n`),
	"inline":     endsWith("exit 0", "", `^Today: `, ` says so, with ENVS/`),
	"crash":      endsWith("exit 1", "Python: ModuleNotFoundError: No module named 'requests' (app.py:12)"),
}

// endsWith returns a check that a job has an outcome, an event with a text, and output that matches regular
// expressions.
func endsWith(outcome, event string, output ...string) func(*testing.T, *alloc) {
	return func(t *testing.T, a *alloc) {
		must.Eq(t, outcome, a.ended(t), must.Sprint(a.story()))
		test.NoError(t, a.tells(event))
		for _, want := range output {
			want = strings.ReplaceAll(want, "ENVS", regexp.QuoteMeta(a.n.cache("envs")))
			test.RegexMatch(t, regexp.MustCompile(want), a.output(t, "stdout"))
		}
	}
}

func TestPythonExamples_DoWhatTheyPromise(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(pythonExamples + "/*.nomad.hcl")
	must.NoError(t, err)
	test.SliceLen(t, len(pythonExampleJobs), files, test.Sprintf("the examples are %q", files))
	for name := range pythonExampleJobs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runPythonExample(t, pythonNode.get(t), name)
		})
	}
}

func runPythonExample(t *testing.T, n *node, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(pythonExamples, name+".nomad.hcl"))
	must.NoError(t, err)
	pythonExampleJobs[name](t, n.submitHCL(t, string(text)))
}

func webExample(t *testing.T, a *alloc) {
	a.running(t)
	var page string
	testsupport.Within(t, time.Minute, func() error {
		s, _, err := a.n.Client().Services().Get("python-web", nil)
		if err != nil {
			return err
		}
		if len(s) != 1 {
			return fmt.Errorf("the job has %d services", len(s))
		}
		page, err = get(fmt.Sprintf("http://%s:%d/", s[0].Address, s[0].Port))
		return err
	})
	for _, want := range []string{"under Nomad</h1>", a.id, "python-web"} {
		test.StrContains(t, page, want, test.Sprint("the page lacks this text"))
	}
	a.checked(t)
	a.stop(t)
	test.Eq(t, "exit 0", a.outcome(), test.Sprint(a.story()))
	test.StrHasSuffix(t, "stopping on SIGTERM\n", a.output(t, "stdout"))
}

// checked waits until a check of the allocation's services has succeeded.
func (a *alloc) checked(t *testing.T) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		checks, err := a.n.Client().Allocations().Checks(a.id, nil)
		if err != nil {
			return err
		}
		for _, c := range checks {
			if c.Status == "success" {
				return nil
			}
		}
		return fmt.Errorf("no check has succeeded: %+v", checks)
	})
}

func get(url string) (string, error) {
	c := http.Client{Timeout: 5 * time.Second}
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return string(b), err
}

// quote returns a Python string literal. s must not need escapes.
func quote(s string) string { return "'" + s + "'" }

// The agent has no privileges: tasks and builds run as the agent's user.
func TestPython_RunsWithoutRoot(t *testing.T) {
	t.Parallel()
	o := nodeOptions{bare: true, shell: unprivileged, python: &pythonOptions{}}
	if os.Geteuid() != 0 {
		o.shell = ""
	}
	n := newNode(t, o)
	for name := range pythonExampleJobs {
		t.Run(name, func(t *testing.T) { runPythonExample(t, n, name) })
	}
}

// TestPythonStart_RunsOnceDespiteKillsOfThePlugin kills the plugin while tasks start. It adds rounds until a kill hits
// a start. At each of its starts, the plugin removes unused environments.
func TestPythonStart_RunsOnceDespiteKillsOfThePlugin(t *testing.T) {
	testsupport.Long(t, "repeats kills on a real agent")
	t.Parallel()
	const rounds, tasks = 4, 3
	n := newNode(t, nodeOptions{python: &pythonOptions{more: "cache_max_age = \"1us\"\n"}})
	wheels := wheelhouse(t, wheel.Wheel{Name: "starts", Version: "6"})
	first := code("import starts", "print(starts.VERSION)").with(needs(wheels, "starts"))
	n.submit(t, py(t, first)).ends(t, "exit 0", "6\n")
	hits, round := 0, 0
	for ; round < rounds || hits == 0; round++ {
		must.NotEq(t, rounds+30, round, must.Sprintf("the plugin was killed %d times, but never amid a start", round))
		must.NoError(t, testsupport.Poll(time.Minute, n.tasksLeft))
		plugin, dir := n.plugin(t), mkdir(t)
		must.NoError(t, os.Chmod(dir, 0o777))
		run := func() int { // the number of tasks whose program has begun
			found, _ := filepath.Glob(filepath.Join(dir, "run-*"))
			return len(found)
		}
		j := py(t, code(
			"import os, starts, time",
			"open("+quote(dir+"/run-")+" + os.environ['NOMAD_ALLOC_INDEX'], 'w').close()",
			"while not os.path.exists("+quote(dir+"/go")+"): time.sleep(0.05)",
			"print(starts.VERSION)",
		).with(needs(wheels, "starts")), func(j *api.Job, _ *api.Task) { j.TaskGroups[0].Count = new(tasks) })
		n.submit(t, j)
		allocs := n.allocs(t, *j.ID, tasks)
		// a kill of the plugin makes Nomad fail a task whose allocation has no directory yet
		testsupport.Eventually(t, "a start, and the directory of each task", func() bool {
			without := func(a *alloc) bool { return !testsupport.Exists(a.dir()) }
			return !slices.ContainsFunc(allocs, without) && len(n.taskDirs()) > 0
		})
		time.Sleep(rand.N(50 * time.Millisecond))
		plugin.end(t)
		if run() < len(n.taskDirs()) {
			hits++
		}
		testsupport.Within(t, 2*time.Minute, func() error {
			processes := n.find(func(p proc) bool { return !n.infrastructure(p) })
			if run() != tasks || len(processes) != tasks {
				return fmt.Errorf("%d of %d tasks have begun, their processes: %v", run(), tasks, processes)
			}
			return nil
		})
		for _, a := range allocs {
			a.held(t)
		}
		touch(t, filepath.Join(dir, "go"))
		for _, a := range allocs {
			a.ends(t, "exit 0", "6\n")
		}
	}
	t.Logf("the plugin was killed amid a start in %d of %d rounds", hits, round)
}
