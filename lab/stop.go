// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// Stop stops a job, and waits until its tasks have ended.
func (l *Lab) Stop(ctx context.Context, job string) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	namespace, err := namespaceOf(ctx, a, job)
	if err != nil {
		return err
	}
	end := l.step(ctx, "Stopping job %s", job)
	err = stopJob(ctx, a.Client(), namespace, job)
	end(err, "its tasks have ended")
	if err == nil && job == hostJob {
		l.say("Host %s is not reached any more; its tasks run on. Bring it back with: %s lab:up", endpoint, mage)
	}
	return err
}

func stopJob(ctx context.Context, c *api.Client, namespace, job string) error {
	w := (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
	if _, _, err := c.Jobs().Deregister(job, false, w); err != nil {
		return fmt.Errorf("failed to stop job %s: %s", job, plain(err))
	}
	return poll.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		left, err := agent.Unended(ctx, c, namespace, job)
		return len(left) == 0, err
	})
}

// namespaceOf returns a job's namespace. If there is no such job, the error lists the jobs.
func namespaceOf(ctx context.Context, a agent.Agent, job string) (string, error) {
	list, err := jobs(ctx, a)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, j := range list {
		if j.ID == job {
			return j.Namespace, nil
		}
		ids = append(ids, j.ID)
	}
	return "", fmt.Errorf("there is no job %q; there are: %s", job, joined(ids))
}
