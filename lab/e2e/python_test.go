// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
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
	entries, _ := os.ReadDir("/proc")
	var found []proc
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := readProc(pid)
		if err != nil {
			continue
		}
		builds := slices.ContainsFunc(p.args, func(a string) bool {
			return strings.Contains(a, n.cache("builds")) || strings.Contains(a, n.cache("downloads"))
		})
		if builds || n.builder != 0 && userOf(pid) == n.builder {
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
