// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent_test

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// run starts an agent without plugins and closes it when the test ends.
func run(t *testing.T, runtime agent.Runtime) agent.Agent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	t.Cleanup(cancel)
	a, err := agent.Run(ctx, agent.Options{
		Runtime: runtime, Binary: program(t), Dir: filepath.Join(t.TempDir(), "a"), Progress: t.Logf,
	})
	must.NoError(t, err)
	t.Cleanup(func() {
		test.NoError(t, a.Close(context.Background()))
	})
	return a
}

// program returns a nomad program.
func program(t *testing.T) string {
	t.Helper()
	path, err := nomad.Binary(t.Context(), t.Logf)
	must.NoError(t, err)
	return path
}

func sleeper(id string) *api.Job {
	task := api.NewTask("sleep", "raw_exec").
		SetConfig("command", "/bin/sleep").SetConfig("args", []string{"600"}).
		Require(&api.Resources{CPU: new(10), MemoryMB: new(10)})
	job := api.NewServiceJob(id, id, "global", 50)
	return job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(task))
}

func runningAlloc(t *testing.T, a agent.Agent, job string) *api.Allocation {
	t.Helper()
	var alloc *api.Allocation
	testsupport.Eventually(t, job+" runs", func() bool {
		list, _, err := a.Client().Jobs().Allocations(job, true, nil)
		if err != nil || len(list) == 0 || list[0].ClientStatus != "running" {
			return false
		}
		alloc, _, err = a.Client().Allocations().Info(list[0].ID, nil)
		return err == nil
	})
	return alloc
}

func TestAgent_KeepsTasksWhenStoppedOrKilled(t *testing.T) { keepsTasks(t, run(t, agent.Host)) }

// keepsTasks stops and kills an agent while a task runs.
func keepsTasks(t *testing.T, a agent.Agent) {
	t.Helper()
	ctx := t.Context()
	if _, _, err := a.Client().Jobs().Register(sleeper("s"), nil); err != nil {
		t.Fatal(err)
	}
	before := runningAlloc(t, a, "s")
	pid := a.Info().Process.PID // zero in a container

	for _, end := range []struct {
		name string
		f    func(context.Context) error
	}{{"stop", a.Stop}, {"kill", a.Kill}} {
		must.NoError(t, end.f(ctx), must.Sprint(end.name))
		must.Error(t, a.Alive(ctx), must.Sprintf("alive after %s", end.name))
		start := time.Now()
		must.NoError(t, a.Start(ctx))
		err := agent.WaitHealthy(ctx, a)
		must.NoError(t, err)
		t.Logf("healthy %v after start", time.Since(start))
		after := runningAlloc(t, a, "s")
		must.Eq(t, before.ID, after.ID, must.Sprintf("after %s: the task was started again", end.name))
		must.True(t, after.TaskStates["sleep"].StartedAt.Equal(before.TaskStates["sleep"].StartedAt),
			must.Sprintf("after %s: the task was started again", end.name))
		must.Eq(t, 0, after.TaskStates["sleep"].Restarts,
			must.Sprintf("after %s: the task was started again", end.name))
	}
	must.False(t, pid != 0 && pid == a.Info().Process.PID, must.Sprint("the agent was not restarted"))
}

func TestAgent_CloseRemovesEverything(t *testing.T) {
	a := run(t, agent.Host)
	_, _, err := a.Client().Jobs().Register(sleeper("s"), nil)
	must.NoError(t, err)
	id := runningAlloc(t, a, "s").ID
	// left lists the agent's processes, its mounts, and the task's cgroups
	left := func() (found []string) {
		ids, err := agent.Processes(a.Info().Dir)
		must.NoError(t, err)
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		must.NoError(t, err)
		_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, _ fs.DirEntry, _ error) error {
			if strings.Contains(path, id) {
				found = append(found, path)
			}
			return nil
		})
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, a.Info().Dir) {
				found = append(found, line)
			}
		}
		return append(found, slices.Repeat([]string{"process"}, len(ids))...)
	}
	must.Greater(t, 2, len(left()))
	if err := a.Kill(t.Context()); err != nil { // the hard case: no agent is left to stop the job
		t.Fatal(err)
	}
	must.NoError(t, a.Close(t.Context()))
	must.SliceEmpty(t, left(), must.Sprint("leftovers"))
	_, err = os.Stat(a.Info().Dir)
	must.True(t, os.IsNotExist(err), must.Sprintf("the directory still exists: %v", err))
	must.NoError(t, a.Close(t.Context()), must.Sprint("the second close"))
}

func TestAgent_CloseWaitsForTasksOfPurgedJobs(t *testing.T) {
	a := run(t, agent.Host)
	dir := t.TempDir()
	job := sleeper("s")
	started, ended := filepath.Join(dir, "started"), filepath.Join(dir, "ended")
	script := fmt.Sprintf("trap 'sleep 2; touch %s; exit' INT; touch %s; while :; do sleep 0.1; done", ended, started)
	job.TaskGroups[0].Tasks[0].SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", script})
	_, _, err := a.Client().Jobs().Register(job, nil)
	must.NoError(t, err)
	testsupport.Eventually(t, "the task traps the signal", func() bool { return testsupport.Exists(started) })
	must.NoError(t, agent.Purge(t.Context(), a.Client(), "default", "s"))
	must.NoError(t, a.Close(t.Context()))
	must.True(t, testsupport.Exists(ended), must.Sprint("Close killed the task, which had 5 s to end"))
}

func TestAgent_ClosingAClientKeepsTasksOfOtherNodes(t *testing.T) {
	server := run(t, agent.Host)
	client, err := agent.Run(t.Context(), agent.Options{
		Runtime: agent.Host, Dir: filepath.Join(t.TempDir(), "a"), Name: "client", Progress: t.Logf,
		Binary: program(t), Server: fmt.Sprintf("127.0.0.1:%d", server.Info().RPC),
	})
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, client.Close(context.Background())) })
	mark := testsupport.Mark()
	job := sleeper("s")
	job.TaskGroups[0].Count = new(2)
	job.TaskGroups[0].Tasks[0].SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", "exec sleep " + mark})
	job.TaskGroups[0].Constrain(api.NewConstraint("", api.ConstraintDistinctHosts, "true"))
	_, _, err = server.Client().Jobs().Register(job, nil)
	must.NoError(t, err)
	testsupport.WaitSleepers(t, mark, 2)
	before := testsupport.Sleepers(mark)

	must.NoError(t, client.Close(t.Context()))
	list, _, err := server.Client().Jobs().Allocations("s", true, nil)
	must.NoError(t, err)
	for _, a := range list {
		test.Eq(t, "run", a.DesiredStatus, test.Sprint("closing the client stopped the job"))
	}
	now := testsupport.Sleepers(mark)
	must.SliceLen(t, 1, now, must.Sprint("closing the client ended another node's task"))
	must.SliceContains(t, before, now[0])
}

func TestRun_CleansUpAfterAFailure(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "nomad-driver-broken")
	must.NoError(t, os.WriteFile(broken, []byte("#!/bin/sh\necho my reason >&2\nexit 1\n"), 0o755))
	for _, tc := range []struct {
		name string
		o    agent.Options
		want string
	}{
		{"a plugin that does not start", agent.Options{Plugins: []agent.Plugin{{Binary: broken}}}, "broken"},
		{"configuration that Nomad refuses", agent.Options{Config: "client {"}, "extra.hcl"},
		{"a plugin file that is missing", agent.Options{Plugins: []agent.Plugin{{Binary: "/nowhere/nomad-driver-x"}}},
			"/nowhere/nomad-driver-x"},
		{"a missing nomad", agent.Options{Binary: "/nowhere/nomad"}, "/nowhere/nomad"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			tc.o.Runtime, tc.o.Dir = agent.Host, filepath.Join(dir, "a")
			tc.o.Binary = cmp.Or(tc.o.Binary, program(t))
			a, err := agent.Run(ctx, tc.o)
			if err == nil {
				a.Close(t.Context())
				t.Fatal("the agent started")
			}
			test.StrContains(t, err.Error(), tc.want, test.Sprintf("error %v, want %q in it", err, tc.want))
			_, err = os.Stat(tc.o.Dir)
			test.True(t, os.IsNotExist(err), test.Sprintf("the directory still exists: %v", err))
			test.ErrorIs(t, agent.Remove(t.Context(), tc.o.Dir), agent.ErrNone,
				test.Sprint("something was left to remove"))
		})
	}
}

func TestAgent_IsIsolatedFromOtherAgents(t *testing.T) {
	a, b := run(t, agent.Host), run(t, agent.Host)
	must.NotEq(t, b.Address(), a.Address(), must.Sprint("same address"))
	_, _, err := a.Client().Jobs().Register(sleeper("s"), nil)
	must.NoError(t, err)
	alloc := runningAlloc(t, a, "s")
	list, _, err := b.Client().Jobs().List(nil)
	must.NoError(t, err, must.Sprint("the other agent has jobs"))
	test.SliceEmpty(t, list, test.Sprint("the other agent has jobs"))
	must.NoError(t, b.Close(t.Context()))
	now := runningAlloc(t, a, "s")
	test.Eq(t, alloc.ID, now.ID, test.Sprint("the task did not outlive the other agent"))
}

func TestOpen_FindsAnAgentByItsDirectory(t *testing.T) {
	a := run(t, agent.Host)
	b, err := agent.Open(t.Context(), a.Info().Dir)
	must.NoError(t, err)
	must.NoError(t, b.Alive(t.Context()))
	test.Eq(t, a.Address(), b.Address())
	_, err = agent.Run(t.Context(), agent.Options{Runtime: agent.Host, Dir: a.Info().Dir})
	test.Error(t, err, test.Sprint("a second agent in the same directory"))
	test.NoError(t, a.Alive(t.Context()), test.Sprint("the refused second agent ended the first"))
	// Remove finds the processes even without the state file
	must.NoError(t, os.Remove(filepath.Join(a.Info().Dir, "agent.json")))
	must.NoError(t, agent.Remove(t.Context(), a.Info().Dir))
	test.Error(t, a.Alive(t.Context()), test.Sprint("the agent still runs"))
}
