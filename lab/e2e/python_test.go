// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// pythonOptions configure the python driver of a node. Its cache is the node's own.
type pythonOptions struct {
	cache string // that of another node; empty is one of its own
	more  string // configuration
}

func (o *pythonOptions) config(builder int) string {
	c := fmt.Sprintf("cache_dir = %q\n", cmp.Or(o.cache, "${state_dir}/environments")) + o.more
	if builder != 0 {
		c += fmt.Sprintf("\nbuild_user = \"%d\"", builder)
	}
	return c
}

var builders atomic.Int64

// newBuilder is a user that builds for one node of all that tests of this machine
// have, so that its processes are that node's. It has no account.
func newBuilder() int { return 1<<30 + os.Getpid()<<6 + int(builders.Add(1)) }

// py is a batch job of one Python program.
func py(t testing.TB, c conf, edit ...func(*api.Job, *api.Task)) *api.Job {
	t.Helper()
	return job(t, c, append([]func(*api.Job, *api.Task){asDriver("python"), withMemory(48)}, edit...)...)
}

func withMemory(mb int) func(*api.Job, *api.Task) {
	return func(_ *api.Job, task *api.Task) { task.Resources.MemoryMB = &mb }
}

// needs is a task that has what it requires from a directory of wheels alone.
func needs(wheels string, requirements ...string) conf {
	return conf{"requirements": requirements, "find_links": []string{wheels}, "offline": true}
}

// code is a task with a program of these lines.
func code(lines ...string) conf { return conf{"code": strings.Join(lines, "\n") + "\n"} }

// cache is where the node's environments are.
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

// installers are the processes that build environments: of the node's builder, or with
// a directory that only they use among their arguments.
func (n *node) installers() []proc {
	if n.driver != "python" {
		return nil
	}
	var found []proc
	for _, p := range allProcs() {
		builds := slices.ContainsFunc(p.args, func(a string) bool {
			return strings.Contains(a, n.cache("builds")) || strings.Contains(a, n.cache("downloads"))
		})
		if builds || n.builder != 0 && userOf(p.pid) == n.builder {
			found = append(found, p)
		}
	}
	return found
}

// userOf is the effective user of a process, proc_pid_status(5); -1 where it is gone.
func userOf(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, ok := bytes.Cut(status, []byte("\nUid:"))
	f := bytes.Fields(rest)
	if !ok || len(f) < 2 {
		return -1
	}
	uid, _ := strconv.Atoi(string(f[1]))
	return uid
}

// cacheMounts are mounts of the cache that anybody but tasks can see.
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

// allocs waits until a job has as many allocations.
func (n *node) allocs(t testing.TB, job string, count int) []*alloc {
	t.Helper()
	var all []*alloc
	testsupport.Within(t, time.Minute, func() error {
		list, _, err := n.Client().Jobs().Allocations(job, false, nil)
		if err != nil {
			return err
		}
		if len(list) != count {
			return fmt.Errorf("job %s has %d allocations, want %d", job, len(list), count)
		}
		all = nil
		for _, s := range list {
			all = append(all, &alloc{n: n, id: s.ID, job: job})
		}
		return nil
	})
	return all
}

// ends checks how a task ended, and all that it printed.
func (a *alloc) ends(t testing.TB, how, out string) {
	t.Helper()
	if got := a.ended(t); got != how {
		stderr, _ := a.read("stderr") // there is none where it was not started
		t.Errorf("%s: got %q, want %q: %s\n%s", a.job, got, how, a.story(), stderr)
		return
	}
	test.Eq(t, out, a.output(t, "stdout"), test.Sprintf("%s prints", a.job))
}

// version is a program that prints what version it has of each module.
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
		testsupport.Within(t, time.Minute, func() error {
			if s := a.story(); !strings.Contains(s, ": built in ") && !strings.Contains(s, ": cache hit") {
				return fmt.Errorf("nothing tells of the environment: %s", s)
			}
			return nil
		})
		builds += strings.Count(a.story(), "building it with")
	}
	touch(t, trigger)
	for _, a := range all {
		a.ends(t, "exit 0", "shared_by_all 3\n")
	}
	test.Eq(t, 1, builds, test.Sprintf("%d builds for %d tasks", builds, count))
}

// until has a program go on until a file is there, and so until a test has seen its events.
func (c conf) until(path string) conf {
	return c.with(code(c["code"].(string), "import os, time", "while not os.path.exists("+quote(path)+
		"): time.sleep(0.1)"))
}

// wheelhouse is a directory with these wheels, which every user can read.
func wheelhouse(t testing.TB, wheels ...wheel.Wheel) string {
	t.Helper()
	dir := mkdir(t)
	for _, w := range wheels {
		must.NoError(t, w.Write(dir))
	}
	return dir
}

// heldIndex is a package index (PEP 503) that does not answer until it is told to.
type heldIndex struct {
	url   string               // for index_url
	asked chan context.Context // gets that of each request that is held

	release func() // may be called twice
}

// holdIndex serves wheels until the end of the test.
func holdIndex(t testing.TB, wheels ...wheel.Wheel) *heldIndex {
	t.Helper()
	dir := wheelhouse(t, wheels...)
	released := make(chan struct{})
	x := &heldIndex{asked: make(chan context.Context, 100), release: sync.OnceFunc(func() { close(released) })}
	index := wheel.Index(dir)
	s := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
		default:
			x.asked <- r.Context()
			select {
			case <-released:
			case <-r.Context().Done():
				return
			}
		}
		index.ServeHTTP(answer, r)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(x.release)
	x.url = s.URL + "/simple"
	return x
}

// wait returns when an installer waits for an answer: one that lives.
func (x *heldIndex) wait(t testing.TB, a *alloc) {
	t.Helper()
	for timeout := time.After(60 * time.Second); ; {
		select {
		case request := <-x.asked:
			if request.Err() == nil {
				return
			}
		case <-timeout:
			t.Fatalf("no installer asks the index: %s", a.story())
		}
	}
}
