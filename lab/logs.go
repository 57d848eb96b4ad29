// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// Logs prints the agent's log, or what a job's tasks write, and follows it until interrupted.
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

// follow prints what the tasks of a job write, until none of them runs any more.
func (l *Lab) follow(ctx context.Context, a agent.Agent, id string) error {
	namespace, err := l.namespace(ctx, a.Client(), id)
	if err != nil {
		return err
	}
	r := newRun(l, a)
	q := (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
	if r.job, _, err = a.Client().Jobs().Info(id, q); err != nil {
		return fmt.Errorf("failed to read job %s: %w", id, err)
	}
	ids, err := agent.Unended(ctx, a.Client(), namespace, id)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return fmt.Errorf("no task of job %s runs", id)
	}
	for {
		allocs, err := r.show(ctx, ids)
		if err != nil {
			return err
		}
		r.output(ctx)
		runs := func(a *api.Allocation) bool { return !a.ClientTerminalStatus() }
		if !slices.ContainsFunc(allocs, runs) {
			r.drain(ctx)
			l.say("\nJob %s has ended.", id)
			return nil
		}
		if err := poll.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}
