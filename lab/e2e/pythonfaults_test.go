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

// The faults happen to one node, one after the other. Each start of the plugin removes unused environments.
func TestPythonFaults_LeaveEnvironmentsWhole(t *testing.T) {
	testsupport.Long(t, "a table of faults on real agents")
	t.Parallel()
	n := newNode(t, nodeOptions{python: &pythonOptions{more: "cache_max_age = \"1us\"\n"}})
	f := &pythonFaults{n: n, dir: mkdir(t)}
	for _, fault := range []struct {
		name string
		test func(*testing.T)
	}{
		{"plugin killed amid a build", f.pluginAmidBuild},
		{"agent killed amid a build", f.agentAmidBuild},
		{"plugin killed amid starts", f.pluginAmidStarts},
		{"agent killed amid starts", f.agentAmidStarts},
	} {
		if !t.Run(fault.name, fault.test) {
			break
		}
	}
}

type pythonFaults struct {
	n   *node
	dir string
}

func (f *pythonFaults) trigger(name string) string { return filepath.Join(f.dir, name) }

// amidBuild submits a job, and returns it and the installer's processes while its environment is being built.
func (f *pythonFaults) amidBuild(t *testing.T, name string) (*alloc, *heldIndex, []proc) {
	index := holdIndex(t, wheel.Wheel{Name: name, Version: "5"})
	a := f.n.submit(t, py(t, version(name).with(conf{"requirements": []string{name}, "index_url": index.url})))
	index.wait(t, a)
	installers := f.n.installers()
	must.SliceNotEmpty(t, installers, must.Sprint("no process of the installer is found"))
	return a, index, installers
}

func (f *pythonFaults) pluginAmidBuild(t *testing.T) {
	a, index, installers := f.amidBuild(t, "amid_plugin")
	f.n.plugin(t).end(t)
	gone(t, installers)
	index.wait(t, a) // Nomad retries the start with the next plugin
	index.release()
	a.ends(t, "exit 0", "amid_plugin 5\n")
}

func (f *pythonFaults) agentAmidBuild(t *testing.T) {
	a, index, installers := f.amidBuild(t, "amid_agent")
	kill(t, f.n)
	gone(t, installers) // even if the plugin has not yet noticed the end of the agent
	f.n.restart(t)
	index.release()
	a.ends(t, "exit 0", "amid_agent 5\n")
}

// starts has the tasks of a job that was just submitted. Each task records its process in a file, and waits.
type starts struct {
	*pythonFaults
	name   string
	before []string // the state directories of other tasks
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
			t.Fatalf("%s did not get there in a minute: %s", s.name, s.allocs[0].story())
		}
	}
}

// notes returns the records of the processes of the task with this index.
func (s *starts) notes(t *testing.T, index int) []string {
	t.Helper()
	b, err := os.ReadFile(s.trigger(s.name) + strconv.Itoa(index))
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

// amidStarts strikes while tasks start. If each round was too late for all of its tasks, more rounds follow.
func (f *pythonFaults) amidStarts(t *testing.T, who string, rounds int, strike func(plugin proc), heal func()) {
	wheels := wheelhouse(t, wheel.Wheel{Name: "starts", Version: "6"})
	f.n.submit(t, py(t, version("starts").with(needs(wheels, "starts")))).ends(t, "exit 0", "starts 6\n")
	hits, round := 0, 0
	for ; round < rounds || hits == 0; round++ {
		must.NotEq(t, rounds+30, round,
			must.Sprintf("the %s was killed %d times, but never amid a start", who, round))
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
