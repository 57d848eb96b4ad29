// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// newBuilder returns a user ID that only one node of all tests on this machine builds with, so processes of that user
// belong to the node. The user has no account.
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

// code returns the configuration of a task whose program has these lines.
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

// installers returns the processes that build environments: those of the node's builder, and those with a build or
// download directory in their arguments.
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

// version returns a program that prints the version of each module.
func version(modules ...string) conf {
	var lines []string
	for _, m := range modules {
		lines = append(lines, "import "+m, fmt.Sprintf("print(%q, %s.VERSION)", m, m))
	}
	return code(lines...)
}

func TestPythonEnvironment_IsBuiltOnceForManyTasks(t *testing.T) {
	t.Parallel()
	oneBuildForMany(t, pythonNode.get(t), 20)
}

func oneBuildForMany(t *testing.T, n *node, count int) {
	c := version("shared_by_all").with(needs(wheelhouse(t, wheel.Wheel{Name: "shared_by_all", Version: "3"}),
		"shared-by-all"))
	trigger := filepath.Join(mkdir(t), "go")
	j := py(t, c.until(trigger), func(j *api.Job, task *api.Task) {
		j.TaskGroups[0].Count = &count
		task.Resources.CPU = new(5)
	})
	n.submit(t, j)
	builds := 0
	all := n.allocs(t, *j.ID, count)
	for _, a := range all {
		a.running(t)
		builds += a.builds(t, "building it with")
	}
	touch(t, trigger)
	for _, a := range all {
		a.ends(t, "exit 0", "shared_by_all 3\n")
	}
	test.Eq(t, 1, builds, test.Sprintf("%d builds for %d tasks", builds, count))
}

// builds waits for the event of a task's environment, and returns how many events have a text.
func (a *alloc) builds(t testing.TB, text string) int {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		if s := a.story(); !strings.Contains(s, ": built in ") && !strings.Contains(s, ": cache hit") {
			return fmt.Errorf("no event of the environment: %s", s)
		}
		return nil
	})
	return strings.Count(a.story(), text)
}

// until makes a program run until a file exists, so a test can read its events before it ends.
func (c conf) until(path string) conf {
	return c.with(code(c["code"].(string), "import os, time", "while not os.path.exists("+quote(path)+
		"): time.sleep(0.1)"))
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

// Two agents share one environment. One of them removes each environment that no task uses, as an operator can.
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
		builds += a.builds(t, ": built in ")
	}
	test.Eq(t, 1, builds)

	touch(t, filepath.Join(dir, "two"))
	two.ends(t, "exit 0", env+"\nin time\n")
	for _, n := range []*node{first, second} { // each next plugin cleans up the cache
		old := n.plugin(t)
		old.end(t)
		n.nextPlugin(t, old)
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
