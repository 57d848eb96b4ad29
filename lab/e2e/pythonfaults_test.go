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
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// TestPythonStart_RunsOnceThroughKillsOfThePlugin kills the plugin while tasks start. If each round was too late for
// all of its tasks, more rounds follow. Each start of the plugin removes unused environments.
func TestPythonStart_RunsOnceThroughKillsOfThePlugin(t *testing.T) {
	testsupport.Long(t, "repeats kills on a real agent")
	t.Parallel()
	const rounds = 4
	n := newNode(t, nodeOptions{python: &pythonOptions{more: "cache_max_age = \"1us\"\n"}})
	dir, wheels := mkdir(t), wheelhouse(t, wheel.Wheel{Name: "starts", Version: "6"})
	n.submit(t, py(t, version("starts").with(needs(wheels, "starts")))).ends(t, "exit 0", "starts 6\n")
	hits, round := 0, 0
	for ; round < rounds || hits == 0; round++ {
		must.NotEq(t, rounds+30, round, must.Sprintf("the plugin was killed %d times, but never amid a start", round))
		plugin := n.plugin(t)
		s := starting(t, n, filepath.Join(dir, fmt.Sprint(round)), wheels, 3)
		s.await(t, func() bool { begun, _ := s.progress(t); return begun > 0 })
		time.Sleep(rand.N(50 * time.Millisecond))
		plugin.end(t)
		if begun, run := s.progress(t); run < begun {
			hits++
		}
		s.eachOnce(t)
	}
	t.Logf("the plugin was killed amid a start in %d of %d rounds", hits, round)
}

// starts has the tasks of a job that was just submitted. Each task records its process in a file, and waits.
type starts struct {
	n      *node
	path   string   // of the records, without the task's index
	before []string // the state directories of other tasks
	allocs []*alloc
}

func starting(t *testing.T, n *node, path, wheels string, count int) *starts {
	t.Helper()
	s := &starts{n: n, path: path + "-", before: n.taskDirs()}
	j := py(t, code(
		"import os, starts, time",
		"log = os.open("+quote(s.path)+" + os.environ['NOMAD_ALLOC_INDEX'], os.O_WRONLY | os.O_APPEND)",
		"since = open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19]",
		"os.write(log, b'%d %s\\n' % (os.getpid(), since.encode()))",
		"while not os.path.exists("+quote(s.path+"go")+"): time.sleep(0.05)",
		"print(starts.VERSION)",
	).with(needs(wheels, "starts")), func(j *api.Job, _ *api.Task) {
		j.TaskGroups[0].Count = &count
	})
	for i := range count {
		path := s.path + strconv.Itoa(i)
		touch(t, path)
		must.NoError(t, os.Chmod(path, 0o666))
	}
	n.submit(t, j)
	s.allocs = n.allocs(t, *j.ID, count)
	// until an allocation has its directory, Nomad fails its task if the plugin is killed
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

// await polls each millisecond, for conditions that may be true only for a short time.
func (s *starts) await(t *testing.T, what func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the condition was not met within a minute: %s", s.allocs[0].story())
		}
	}
}

// notes returns the records of the processes of the task with this index.
func (s *starts) notes(t *testing.T, index int) []string {
	t.Helper()
	b, err := os.ReadFile(s.path + strconv.Itoa(index))
	must.NoError(t, err)
	return slices.Collect(strings.Lines(string(b)))
}

// progress returns how many tasks the plugin has begun to start, and how many programs of these run.
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

// eachOnce checks that exactly one process of each task runs, and ends the tasks.
func (s *starts) eachOnce(t *testing.T) {
	t.Helper()
	for i, a := range s.allocs {
		// files are sorted by index, allocations are not
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
			if !s.n.infrastructure(p) {
				running++
			}
		}
		if running != len(s.allocs) {
			return fmt.Errorf("%d processes of %d tasks", running, len(s.allocs))
		}
		return nil
	})
	touch(t, s.path+"go")
	for _, a := range s.allocs {
		a.ends(t, "exit 0", "6\n")
	}
}
