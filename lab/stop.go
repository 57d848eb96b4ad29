// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

// Down stops the jobs and the agent, and removes everything of the lab but Docker's image and the cache, which the next
// lab can use again. If there is no lab, it reports that and succeeds.
func (l *Lab) Down(ctx context.Context) error {
	if !exists(l.dir) {
		l.say("The lab is not up: nothing to do.")
		return nil
	}
	end := l.step(ctx, "Stopping the jobs and the agent")
	err := errors.Join(l.stopOnNodes(ctx), l.removeNodes(ctx), agent.Remove(ctx, l.dir))
	end(err, "they are gone, with their files")
	if err != nil && cancelled(ctx) {
		return Interrupted("the lab is not all gone. Go on with: " + mage + " lab:down")
	}
	return err
}

// stopOnNodes stops the jobs of a lab with more nodes before these are removed, except that of the host's SSH server:
// tasks on the host have to end before it.
func (l *Lab) stopOnNodes(ctx context.Context) error {
	a, err := l.open(ctx)
	if err != nil || !exists(filepath.Join(l.dir, nodesDir)) {
		return nil //nolint:nilerr // an agent that has ended stops no job
	}
	if exists(l.hostDir()) && !runs(ctx, a.Client(), hostJob) {
		return nil // no task on a host that is away can be stopped
	}
	return agent.StopJobs(ctx, a.Client(), hostJob)
}
