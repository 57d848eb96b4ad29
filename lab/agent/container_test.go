// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

func TestContainer_KeepsTasksWhileTheAgentIsRestarted(t *testing.T) {
	testsupport.Long(t, "needs containers")
	if err := agent.DockerAnswers(t.Context()); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	a := run(t, agent.Container)
	keepsTasks(t, a)
	out, err := exec.Command("docker", "exec", a.Info().Container, "ps", "-o", "comm=", "-p", "1").Output()
	must.NoError(t, err)
	test.NotEq(t, "nomad", strings.TrimSpace(string(out)), test.Sprint("pid 1: want an init"))
	testsupport.Eventually(t, "the log has three starts", func() bool { // Docker passes the log on with a delay
		log, err := a.Log()
		return err == nil && strings.Count(log, "Nomad agent started!") >= 3
	})

	must.NoError(t, a.Close(ctx))
	test.Error(t, exec.Command("docker", "inspect", a.Info().Container).Run(), test.Sprint("the container still exists"))
	test.NoError(t, a.Close(ctx), test.Sprint("the second close"))
}
