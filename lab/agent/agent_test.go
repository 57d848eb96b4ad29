package agent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
)

// run starts a host agent without plugins and closes it with the test.
func run(t *testing.T) agent.Agent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	t.Cleanup(cancel)
	a, err := agent.Run(ctx, agent.Options{
		Runtime: agent.Host, Dir: filepath.Join(t.TempDir(), "a"), Progress: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return a
}

func sleeper(id string) *api.Job {
	task := api.NewTask("sleep", "raw_exec").
		SetConfig("command", "/bin/sleep").SetConfig("args", []string{"600"}).
		Require(&api.Resources{CPU: new(10), MemoryMB: new(10)})
	job := api.NewServiceJob(id, id, "global", 50)
	return job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(task))
}

// await polls until f is true.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if f() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

func runningAlloc(t *testing.T, a agent.Agent, job string) *api.Allocation {
	t.Helper()
	var alloc *api.Allocation
	await(t, job+" runs", func() bool {
		list, _, err := a.Client().Jobs().Allocations(job, true, nil)
		if err != nil || len(list) == 0 || list[0].ClientStatus != "running" {
			return false
		}
		alloc, _, err = a.Client().Allocations().Info(list[0].ID, nil)
		return err == nil
	})
	return alloc
}

func TestAgent_KeepsTasksWhileStoppedAndKilled(t *testing.T) {
	a := run(t)
	ctx := t.Context()
	if _, _, err := a.Client().Jobs().Register(sleeper("s"), nil); err != nil {
		t.Fatal(err)
	}
	before := runningAlloc(t, a, "s")
	pid, err := a.PID(ctx)
	if err != nil {
		t.Fatal(err)
	}

	for _, end := range []struct {
		name string
		f    func(context.Context) error
	}{{"stop", a.Stop}, {"kill", a.Kill}} {
		if err := end.f(ctx); err != nil {
			t.Fatalf("%s: %v", end.name, err)
		}
		if a.Alive(ctx) == nil {
			t.Fatalf("alive after %s", end.name)
		}
		start := time.Now()
		if err := a.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := agent.WaitHealthy(ctx, a); err != nil {
			t.Fatal(err)
		}
		t.Logf("healthy %v after start", time.Since(start))
		after := runningAlloc(t, a, "s")
		if after.ID != before.ID || !after.TaskStates["sleep"].StartedAt.Equal(before.TaskStates["sleep"].StartedAt) ||
			after.TaskStates["sleep"].Restarts != 0 {
			t.Fatalf("after %s: the task was started again", end.name)
		}
	}
	if now, _ := a.PID(ctx); now == pid {
		t.Fatal("the agent was not restarted")
	}
}

func TestAgent_CloseLeavesNothing(t *testing.T) {
	a := run(t)
	if _, _, err := a.Client().Jobs().Register(sleeper("s"), nil); err != nil {
		t.Fatal(err)
	}
	runningAlloc(t, a, "s")
	if left, err := a.Leftovers(t.Context()); err != nil || len(left) < 2 {
		t.Fatalf("a running agent shows %q, %v", left, err)
	}
	if err := a.Kill(t.Context()); err != nil { // the hard case: nobody stops the job
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := a.Leftovers(t.Context()); err != nil || len(left) != 0 {
		t.Fatalf("left: %q, %v", left, err)
	}
	if _, err := os.Stat(a.Info().Dir); !os.IsNotExist(err) {
		t.Fatalf("the directory is left: %v", err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatalf("the second close: %v", err)
	}
}

func TestRun_LeavesNothingAfterAFailure(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "nomad-driver-broken")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho my reason >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		o    agent.Options
		want string
	}{
		{"a plugin that does not start", agent.Options{Plugins: []agent.Plugin{{Binary: broken}}}, "broken"},
		{"configuration that Nomad refuses", agent.Options{Config: "client {"}, "extra.hcl"},
		{"a plugin file that is missing", agent.Options{Plugins: []agent.Plugin{{Binary: "/nowhere/nomad-driver-x"}}},
			"/nowhere/nomad-driver-x"},
		{"a nomad that is none", agent.Options{Binary: "/nowhere/nomad"}, "/nowhere/nomad"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			tc.o.Runtime, tc.o.Dir = agent.Host, filepath.Join(dir, "a")
			a, err := agent.Run(ctx, tc.o)
			if err == nil {
				a.Close(t.Context())
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
			if _, err := os.Stat(tc.o.Dir); !os.IsNotExist(err) {
				t.Errorf("the directory is left: %v", err)
			}
			if err := agent.Remove(t.Context(), tc.o.Dir); !errors.Is(err, agent.ErrNone) {
				t.Errorf("something was left to remove: %v", err)
			}
		})
	}
}

func TestAgent_DoesNotMeetAnother(t *testing.T) {
	a, b := run(t), run(t)
	if a.Address() == b.Address() {
		t.Fatal("one address")
	}
	if _, _, err := a.Client().Jobs().Register(sleeper("s"), nil); err != nil {
		t.Fatal(err)
	}
	alloc := runningAlloc(t, a, "s")
	if list, _, err := b.Client().Jobs().List(nil); err != nil || len(list) != 0 {
		t.Errorf("the other agent has jobs %v, %v", list, err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := runningAlloc(t, a, "s"); now.ID != alloc.ID {
		t.Error("the task did not outlive the other agent")
	}
}

func TestOpen_FindsAnAgentByItsDirectory(t *testing.T) {
	a := run(t)
	b, err := agent.Open(t.Context(), a.Info().Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Alive(t.Context()); err != nil || b.Address() != a.Address() {
		t.Errorf("%v, %s", err, b.Address())
	}
	if _, err := agent.Run(t.Context(), agent.Options{Runtime: agent.Host, Dir: a.Info().Dir}); err == nil {
		t.Error("a second agent in the same directory")
	}
	if err := a.Alive(t.Context()); err != nil {
		t.Errorf("the refused second one has hurt the first: %v", err)
	}
	// the state file is lost: what runs is still found
	if err := os.Remove(filepath.Join(a.Info().Dir, "agent.json")); err != nil {
		t.Fatal(err)
	}
	if err := agent.Remove(t.Context(), a.Info().Dir); err != nil {
		t.Fatal(err)
	}
	if a.Alive(t.Context()) == nil {
		t.Error("it lives on")
	}
}
