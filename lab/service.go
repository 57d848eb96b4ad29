// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// service returns the job of a program that is part of the lab. The job runs on the node of the lab's own agent.
func service(id string, resources *api.Resources, program string, args ...string) *api.Job {
	task := api.NewTask(id, "exec-lite").SetConfig("command", program).SetConfig("args", args).Require(resources)
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	group := api.NewTaskGroup(id, 1).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	own := api.NewConstraint("${node.unique.name}", "=", ownNode)
	return api.NewServiceJob(id, id, "global", 50).Constrain(own).AddTaskGroup(group)
}

// serve submits a job that the function service has made. It waits until the job runs and works returns true.
func serve(ctx context.Context, a agent.Agent, job *api.Job, works func(context.Context) bool) error {
	_, _, err := a.Client().Jobs().Register(job, (&api.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("failed to submit job %s: %w", *job.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = poll.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		return works(ctx) && runs(ctx, a.Client(), *job.ID), nil
	})
	if err != nil {
		return fmt.Errorf("job %s is not ready: %w; see its output", *job.ID, err)
	}
	return nil
}

// runs reports whether a job has a running allocation that is not being stopped.
func runs(ctx context.Context, c *api.Client, job string) bool {
	allocs, _, err := c.Jobs().Allocations(job, false, (&api.QueryOptions{}).WithContext(ctx))
	return err == nil && slices.ContainsFunc(allocs, func(a *api.AllocationListStub) bool {
		return a.DesiredStatus == api.AllocDesiredStatusRun && a.ClientStatus == api.AllocClientStatusRunning
	})
}
