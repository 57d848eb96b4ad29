// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"os/exec"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
)

// Logs prints the agent's log until interrupted, or the output of a job's tasks until they end.
func (l *Lab) Logs(ctx context.Context, job string) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	if job == "" {
		tail := exec.CommandContext(ctx, "tail", "-n", "+1", "-F", a.LogPath())
		tail.Stdout = l.out
		return tail.Run()
	}
	err = l.follow(ctx, a, job)
	if err != nil && ctx.Err() != nil {
		return goesOn(job)
	}
	return err
}

func (l *Lab) follow(ctx context.Context, a agent.Agent, id string) error {
	namespace, err := namespaceOf(ctx, a, id)
	if err != nil {
		return err
	}
	job, _, err := a.Client().Jobs().Info(id, (&api.QueryOptions{Namespace: namespace}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("failed to read job %s: %w", id, err)
	}
	ids, err := agent.Unended(ctx, a.Client(), namespace, id)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return fmt.Errorf("no task of job %s is running", id)
	}
	return newRun(l, a, job).watch(ctx, ids, true)
}
