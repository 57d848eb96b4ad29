// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// cluster runs jobs on the agent.
type cluster struct {
	agent  agent.Agent
	marker string // in the arguments of every task
	n      int
}

// sleeper is a task that only sleeps; talker prints a line a second.
func (c *cluster) sleeper() (string, []string) { return "/bin/sleep", []string{c.marker} }

func (c *cluster) talker() (string, []string) {
	return "/bin/sh", []string{"-c", "while :; do echo a line of output, as a service prints when little happens; " +
		"sleep 1; done # " + c.marker}
}

// job describes count tasks, each in an allocation of its own.
func (c *cluster) job(driver string, count int, command string, args []string) *api.Job {
	c.n++
	id := fmt.Sprintf("bench-%s-%d", driver, c.n)
	task := api.NewTask("task", driver).
		SetConfig("command", command).SetConfig("args", args).
		Require(&api.Resources{CPU: new(10), MemoryMB: new(16)}).
		SetLogConfig(&api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)})
	task.KillTimeout = new(time.Second)
	group := api.NewTaskGroup("group", count).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	return api.NewServiceJob(id, id, "global", 50).AddTaskGroup(group)
}

// start submits a job and returns how long it took until all its tasks ran, as
// the server shows it.
func (c *cluster) start(ctx context.Context, job *api.Job) (time.Duration, error) {
	want := *job.TaskGroups[0].Count
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	begin := time.Now()
	if _, _, err := c.agent.Client().Jobs().Register(job, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return 0, fmt.Errorf("failed to submit job %s: %w", *job.ID, err)
	}
	q := (&api.QueryOptions{}).WithContext(ctx)
	err := poll.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		s, _, err := c.agent.Client().Jobs().Summary(*job.ID, q)
		if err != nil {
			return false, fmt.Errorf("failed to watch job %s: %w", *job.ID, err)
		}
		g := s.Summary["group"]
		if g.Failed+g.Lost > 0 {
			return false, fmt.Errorf("%d tasks of job %s failed", g.Failed+g.Lost, *job.ID)
		}
		return g.Running == want, nil
	})
	if err != nil {
		return 0, fmt.Errorf("the %d tasks of job %s do not run: %w", want, *job.ID, err)
	}
	return time.Since(begin), nil
}

// stop purges a job and waits until nothing of its tasks is left.
func (c *cluster) stop(ctx context.Context, job *api.Job) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	w := (&api.WriteOptions{}).WithContext(ctx)
	if _, _, err := c.agent.Client().Jobs().Deregister(*job.ID, true, w); err != nil {
		return fmt.Errorf("failed to stop job %s: %w", *job.ID, err)
	}
	err := poll.Until(ctx, 50*time.Millisecond, func() (bool, error) {
		ps, err := c.processes(ctx)
		left := slices.ContainsFunc(ps, func(p process) bool {
			return p.role == isTask || p.role == isExecutor || p.role == isLogmon
		})
		return !left, err
	})
	if err != nil {
		return fmt.Errorf("processes of job %s do not end: %w", *job.ID, err)
	}
	// the client destroys the tasks and removes their directories
	return c.agent.Client().System().GarbageCollect()
}

func (c *cluster) processes(ctx context.Context) ([]process, error) {
	pid, err := c.agent.PID(ctx)
	if err != nil {
		return nil, err
	}
	return tree(pid, c.agent.Info().Dir, c.marker)
}
