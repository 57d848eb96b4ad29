// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	const rounds, tasks = 4, 3
	n := newNode(t, nodeOptions{python: &pythonOptions{more: "cache_max_age = \"1us\"\n"}})
	wheels := wheelhouse(t, wheel.Wheel{Name: "starts", Version: "6"})
	n.submit(t, py(t, version("starts").with(needs(wheels, "starts")))).ends(t, "exit 0", "starts 6\n")
	hits, round := 0, 0
	for ; round < rounds || hits == 0; round++ {
		must.NotEq(t, rounds+30, round, must.Sprintf("the plugin was killed %d times, but never amid a start", round))
		must.NoError(t, testsupport.Poll(time.Minute, n.tasksLeft))
		plugin, dir := n.plugin(t), mkdir(t)
		must.NoError(t, os.Chmod(dir, 0o777))
		run := func() int { // tasks whose program has begun
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
		// until an allocation has its directory, Nomad fails its task if the plugin is killed
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
