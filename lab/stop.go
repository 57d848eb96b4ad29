// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// Stop stops a job. It does not wait for the deployment, whose cancellation nomad would report as an error.
func (l *Lab) Stop(ctx context.Context, job string) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	err = l.nomad(ctx, a, "job", "stop", "-detach", "-namespace=*", job)
	if err == nil {
		l.say("Job %s is stopped.", job)
	}
	return err
}

// Down stops the jobs and the agents, and deletes the lab. It keeps the Docker image and the cache for the next lab. If
// no lab exists, Down reports that without an error.
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

// stopOnNodes stops the jobs of a lab with several nodes before the nodes are removed. The SSH server's job keeps
// running, because the tasks on the SSH host must end first.
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
