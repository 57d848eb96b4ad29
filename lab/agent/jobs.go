// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// Evaluated waits until the scheduler has finished an evaluation, and returns it.
func Evaluated(ctx context.Context, c *api.Client, namespace, eval string) (*api.Evaluation, error) {
	q := (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
	var e *api.Evaluation
	err := poll.Until(ctx, 50*time.Millisecond, func() (done bool, err error) {
		if e, _, err = c.Evaluations().Info(eval, q); err != nil {
			return false, err
		}
		switch e.Status {
		case api.EvalStatusComplete, api.EvalStatusFailed, api.EvalStatusCancelled:
			return true, nil
		}
		return false, nil
	})
	if err != nil {
		return nil, fmt.Errorf("failed to wait for evaluation %s: %w", eval, err)
	}
	return e, nil
}

// Purge removes a job and waits for the evaluation of the removal. Without the wait, that evaluation could place a new
// job of the same name, which is submitted next. The new job's own evaluation would then have nothing left to do.
func Purge(ctx context.Context, c *api.Client, namespace, job string) error {
	w := (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
	eval, _, err := c.Jobs().Deregister(job, true, w)
	if err == nil && eval != "" { // a periodic job has no evaluation
		_, err = Evaluated(ctx, c, namespace, eval)
	}
	if err != nil {
		return fmt.Errorf("failed to remove job %s: %w", job, err)
	}
	return nil
}

// StopJobs stops all jobs except the one whose id is the parameter but, which may be empty. It waits until the tasks
// have ended, for at most 20 s: a little longer than most tasks may take to end.
func StopJobs(ctx context.Context, c *api.Client, but string) error {
	jobs, _, err := c.Jobs().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("failed to list jobs: %w", err)
	}
	for _, j := range jobs {
		if j.ID == but {
			continue
		}
		w := (&api.WriteOptions{Namespace: j.Namespace}).WithContext(ctx)
		if _, _, err := c.Jobs().Deregister(j.ID, false, w); err != nil {
			return fmt.Errorf("failed to stop job %s: %w", j.ID, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err = poll.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		left, err := Unended(ctx, c, "*", fmt.Sprintf("JobID != %q", but))
		return len(left) == 0, err
	})
	if ctx.Err() != nil {
		return nil // the caller kills the tasks that still run, with the agent
	}
	return err
}

// Unended returns the ids of the allocations that match a filter (go-bexpr) and have not ended.
func Unended(ctx context.Context, c *api.Client, namespace, filter string) (ids []string, err error) {
	q := (&api.QueryOptions{Namespace: namespace, Filter: filter}).WithContext(ctx)
	list, _, err := c.Allocations().List(q)
	if err != nil {
		return nil, fmt.Errorf("failed to list allocations: %w", err)
	}
	for _, a := range list {
		if !(&api.Allocation{ClientStatus: a.ClientStatus}).ClientTerminalStatus() {
			ids = append(ids, a.ID)
		}
	}
	return ids, nil
}
