package agent_test

import (
	"context"
	"os"
	"path/filepath"
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
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if f() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
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

func TestTasksLiveOnWhileTheAgentIsStoppedAndKilled(t *testing.T) {
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
		if after.ID != before.ID || !after.TaskStates["sleep"].StartedAt.Equal(before.TaskStates["sleep"].StartedAt) || after.TaskStates["sleep"].Restarts != 0 {
			t.Fatalf("after %s: the task was started again", end.name)
		}
	}
	if now, _ := a.PID(ctx); now == pid {
		t.Fatal("the agent was not restarted")
	}
}

func TestCloseLeavesNothing(t *testing.T) {
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
