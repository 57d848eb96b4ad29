// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent_test

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
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
	must.NoError(t, err)
	defer a.Close(context.WithoutCancel(ctx))
	if _, _, err := a.Client().Jobs().Register(sleeper("s"), nil); err != nil {
		t.Fatal(err)
	}
	before := runningAlloc(t, a, "s")
	pid, err := a.PID(ctx)
	must.NoError(t, err)
	for name, end := range map[string]func(context.Context) error{"stop": a.Stop, "kill": a.Kill} {
		must.NoError(t, end(ctx), must.Sprint(name))
		must.Error(t, a.Alive(ctx), must.Sprintf("alive after %s", name))
		must.NoError(t, a.Start(ctx))
		_, err := agent.WaitHealthy(ctx, a)
		must.NoError(t, err)
		after := runningAlloc(t, a, "s")
		must.Eq(t, before.ID, after.ID, must.Sprintf("after %s: the task was started again", name))
		must.True(t, after.TaskStates["sleep"].StartedAt.Equal(before.TaskStates["sleep"].StartedAt),
			must.Sprintf("after %s: the task was started again", name))
	}
	now, err := a.PID(ctx)
	must.NoError(t, err, must.Sprintf("pid %d as before", now))
	test.NotEq(t, pid, now, test.Sprintf("pid %d as before", now))
	out, err := a.Exec(ctx, "ps", "-o", "comm=", "-p", "1")
	must.NoError(t, err, must.Sprintf("pid 1 is %q, %v: want an init", out, err))
	test.NotEq(t, "nomad", strings.TrimSpace(out), test.Sprintf("pid 1 is %q, %v: want an init", out, err))
	testsupport.Eventually(t, "the log tells of three starts", func() bool { // Docker takes it by the way
		var log bytes.Buffer
		err := a.Logs(ctx, &log, false)
		return err == nil && strings.Count(log.String(), "Nomad agent started!") >= 3
	})

	other := agent.Options{Name: "outrider", Hash: "2",
		Plugins: []agent.Plugin{{Binary: "nomad-device-x", Config: "root = \"/x\""}}}
	err = a.Reconfigure(ctx, other)
	must.NoError(t, err, must.Sprintf("reconfigured: %v, hash", err))
	test.Eq(t, "2", a.Info().Hash, test.Sprintf("reconfigured: %v, hash", err))
	out, err = a.Exec(ctx, "grep", "-rhs", `root = "/x"`, "/etc/nomad.d")
	must.NoError(t, err, must.Sprintf("its configuration has %q", out))
	test.Eq(t, 1, strings.Count(out, "root"), test.Sprintf("its configuration has %q", out))

	must.NoError(t, a.Close(ctx))
	left, err := a.Leftovers(ctx)
	must.NoError(t, err, must.Sprint("left"))
	test.SliceEmpty(t, left, test.Sprint("left"))
	test.NoError(t, a.Close(ctx), test.Sprint("the second close"))
}
