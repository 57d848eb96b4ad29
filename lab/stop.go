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

	"github.com/outrider-dev/outrider/internal/core/testsupport"
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
		l.say("Host %s is no longer reachable; its tasks keep running. Bring it back with: %s lab:up", endpoint, mage)
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

// namespaceOf returns a job's namespace. If the job does not exist, the error lists those that do.
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
	return "", fmt.Errorf("job %q does not exist; existing jobs: %s", job, joined(ids))
}

// Down stops the jobs and the agent, and deletes the lab. It keeps the Docker image and the cache for the next lab.
// Without a lab it reports that, and succeeds.
func (l *Lab) Down(ctx context.Context) error {
	if !testsupport.Exists(l.dir) {
		l.say("The lab is not up: nothing to do.")
		return nil
	}
	end := l.step(ctx, "Stopping the jobs and the agent")
	err := errors.Join(l.stopOnNodes(ctx), l.removeNodes(ctx), agent.Remove(ctx, l.dir))
	end(err, "stopped, files removed")
	if err != nil && cancelled(ctx) {
		return Interrupted("the lab is not fully removed. Continue with: " + mage + " lab:down")
	}
	return err
}

// stopOnNodes stops the jobs of a lab with several nodes before the nodes are removed. The host's SSH server is left
// running, because tasks on the host must end before it.
func (l *Lab) stopOnNodes(ctx context.Context) error {
	a, err := l.open(ctx)
	if err != nil || !testsupport.Exists(filepath.Join(l.dir, nodesDir)) {
		return nil //nolint:nilerr // an agent that has exited cannot stop jobs
	}
	if testsupport.Exists(l.hostDir()) && !runs(ctx, a.Client(), hostJob) {
		return nil // tasks on an unreachable host cannot be stopped
	}
	return agent.StopJobs(ctx, a.Client(), hostJob)
}
