// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// cluster runs jobs on an agent.
type cluster struct {
	*bench
	agent  agent.Agent
	marker string // in the arguments of every task
	n      int
}

// startAgent starts an agent with exec-lite in a directory of this name. The caller closes it.
func (b *bench) startAgent(ctx context.Context, name, config string) (*cluster, error) {
	c := &cluster{bench: b, marker: fmt.Sprintf("1%07d", os.Getpid())}
	return c, b.step(func() (err error) {
		c.agent, err = agent.Run(ctx, agent.Options{
			Runtime: agent.Host, Dir: filepath.Join(b.dir, name), Name: "outrider-bench",
			Progress: b.steps.Progress, Config: config,
			Plugins: []agent.Plugin{{Binary: b.liteBinary, Config: `state_dir = "${state_dir}"`}},
		})
		return err
	}, "Starting an agent")
}

func (c *cluster) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return c.step(func() error { return c.agent.Close(ctx) }, "Removing the agent")
}

// sleeper is the command of a task that only sleeps.
func (c *cluster) sleeper() []string { return []string{"/bin/sleep", c.marker} }

// talker is the command of a task that prints a line a second.
func (c *cluster) talker() []string {
	return []string{"/bin/sh", "-c", "while :; do echo a line of output, as a service prints when little happens; " +
		"sleep 1; done # " + c.marker}
}

// job describes count tasks, each in an allocation of its own.
func (c *cluster) job(driver string, count int, command []string) *api.Job {
	c.n++
	id := fmt.Sprintf("bench-%s-%d", driver, c.n)
	task := api.NewTask("task", driver).
		SetConfig("command", command[0]).SetConfig("args", command[1:]).
		Require(&api.Resources{CPU: new(10), MemoryMB: new(16)}).
		SetLogConfig(&api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)})
	task.KillTimeout = new(time.Second)
	group := api.NewTaskGroup("group", count).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	return api.NewServiceJob(id, id, "global", 50).AddTaskGroup(group)
}

// settle is how long the agent needs to calm down after a start: Nomad batches its
// updates to the server, and the Go runtimes return memory.
const settle = 2 * time.Second

// start submits a job and returns how long it took until the server showed all its tasks
// as running. It returns when the agent has calmed down.
func (c *cluster) start(ctx context.Context, job *api.Job) (time.Duration, error) {
	want := *job.TaskGroups[0].Count
	begin := time.Now()
	if _, _, err := c.agent.Client().Jobs().Register(job, nil); err != nil {
		return 0, fmt.Errorf("failed to submit job %s: %w", *job.ID, err)
	}
	err := wait(ctx, 10*time.Millisecond, func() (bool, error) {
		g, err := c.summary(job)
		if g.Failed+g.Lost > 0 {
			return false, fmt.Errorf("%d tasks of job %s failed", g.Failed+g.Lost, *job.ID)
		}
		return g.Running == want, err
	})
	took := time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("the %d tasks of job %s do not run: %w", want, *job.ID, err)
	}
	return took, poll.Sleep(ctx, settle)
}

// end stops or purges a job and returns how long it took until done.
func (c *cluster) end(ctx context.Context, job *api.Job, purge bool, interval time.Duration,
	done func() (bool, error)) (time.Duration, error) {
	begin := time.Now()
	if _, _, err := c.agent.Client().Jobs().Deregister(*job.ID, purge, nil); err != nil {
		return 0, fmt.Errorf("failed to stop job %s: %w", *job.ID, err)
	}
	if err := wait(ctx, interval, done); err != nil {
		return 0, fmt.Errorf("the tasks of job %s do not end: %w", *job.ID, err)
	}
	return time.Since(begin), nil
}

// stop purges a job and waits until its processes have ended.
func (c *cluster) stop(ctx context.Context, job *api.Job) error {
	_, err := c.end(ctx, job, true, 50*time.Millisecond, func() (bool, error) {
		ps, err := c.processes(ctx)
		left := slices.ContainsFunc(ps, func(p process) bool {
			return p.role == isTask || p.role == isExecutor || p.role == isLogmon
		})
		return !left, err
	})
	if err != nil {
		return err
	}
	// the client destroys the tasks and removes their directories
	return c.agent.Client().System().GarbageCollect()
}

// summary is the server's summary of a job.
func (c *cluster) summary(job *api.Job) (api.TaskGroupSummary, error) {
	s, _, err := c.agent.Client().Jobs().Summary(*job.ID, nil)
	if err != nil {
		return api.TaskGroupSummary{}, fmt.Errorf("failed to watch job %s: %w", *job.ID, err)
	}
	return s.Summary["group"], nil
}

// wait polls until done, for at most ten minutes: only a fault takes that long, on a busy machine, too.
func wait(ctx context.Context, interval time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	return poll.Until(ctx, interval, done)
}

func (c *cluster) processes(ctx context.Context) ([]process, error) {
	pid, err := c.agent.PID(ctx)
	if err != nil {
		return nil, err
	}
	return tree(pid, c.agent.Info().Dir, c.marker)
}

// helpers calls f for the agent and for each process that works for the tasks of a driver.
func (c *cluster) helpers(ctx context.Context, driver string, f func(process) error) error {
	ps, err := c.processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range ps {
		if p.role != isAgent && !p.role.helps(driver) {
			continue
		}
		err := f(p)
		if p.role == isOther && ended(err) { // a short command of the agent's
			continue
		}
		if err != nil {
			return fmt.Errorf("failed to measure the %s: %w", p.role, err)
		}
	}
	return nil
}
