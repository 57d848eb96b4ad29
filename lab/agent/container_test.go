package agent_test

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
)

func TestContainer_KeepsTasksWhileTheAgentIsRestarted(t *testing.T) {
	if err := agent.DockerAnswers(t.Context()); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	a, err := agent.Run(ctx, agent.Options{Runtime: agent.Container, Dir: filepath.Join(t.TempDir(), "a"),
		Progress: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(context.WithoutCancel(ctx))
	if _, _, err := a.Client().Jobs().Register(sleeper("s"), nil); err != nil {
		t.Fatal(err)
	}
	before := runningAlloc(t, a, "s")
	pid, err := a.PID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(context.Context) error{"stop": a.Stop, "kill": a.Kill} {
		if err := end(ctx); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if a.Alive(ctx) == nil {
			t.Fatalf("alive after %s", name)
		}
		if err := a.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := agent.WaitHealthy(ctx, a); err != nil {
			t.Fatal(err)
		}
		after := runningAlloc(t, a, "s")
		if after.ID != before.ID || !after.TaskStates["sleep"].StartedAt.Equal(before.TaskStates["sleep"].StartedAt) {
			t.Fatalf("after %s: the task was started again", name)
		}
	}
	if now, err := a.PID(ctx); err != nil || now == pid {
		t.Errorf("pid %d as before, %v", now, err)
	}
	if out, err := a.Exec(ctx, "ps", "-o", "comm=", "-p", "1"); err != nil || strings.TrimSpace(out) == "nomad" {
		t.Errorf("pid 1 is %q, %v: want an init", out, err)
	}
	await(t, "the log tells of three starts", func() bool { // Docker takes it by the way
		var log bytes.Buffer
		err := a.Logs(ctx, &log, false)
		return err == nil && strings.Count(log.String(), "Nomad agent started!") >= 3
	})

	other := agent.Options{Name: "outrider", Hash: "2",
		Plugins: []agent.Plugin{{Binary: "nomad-device-x", Config: "root = \"/x\""}}}
	if err := a.Reconfigure(ctx, other); err != nil || a.Info().Hash != "2" {
		t.Errorf("reconfigured: %v, hash %q", err, a.Info().Hash)
	}
	if out, err := a.Exec(ctx, "grep", "-rhs", `root = "/x"`, "/etc/nomad.d"); err != nil ||
		strings.Count(out, "root") != 1 {
		t.Errorf("its configuration has %q, %v", out, err)
	}

	if err := a.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if left, err := a.Leftovers(ctx); err != nil || len(left) != 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	if err := a.Close(ctx); err != nil {
		t.Errorf("the second close: %v", err)
	}
}
