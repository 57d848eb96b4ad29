// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// noStatistics keeps Nomad from requesting statistics of the drivers, as by default. A lab's agents request them
// each second (package agent).
const noStatistics = `telemetry {
  collection_interval = "1h"
}`

// stopped is the number of tasks of the job that is stopped without a purge. A job of this size is also purged.
const stopped = 100

// measureCrowd measures the time that jobs of many tasks take, as an operator sees it at the server and on the disk.
func (b *bench) measureCrowd(ctx context.Context) (err error) {
	c, err := b.startAgent(ctx, filepath.Join(b.dir, "crowd"), noStatistics)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	for _, tasks := range slices.Compact([]int{b.crowd, stopped}) {
		err := b.turns(func(driver string) error { return c.measurePurge(ctx, driver, tasks) },
			"a job of %d tasks is started and purged", tasks)
		if err != nil {
			return err
		}
	}
	err = b.turns(func(driver string) error { return c.measureStop(ctx, driver) },
		"a job of %d tasks is started and stopped", stopped)
	if err != nil {
		return err
	}
	return b.step(func() error { return c.recover(ctx) },
		"The plugin of %s is killed while %d tasks run", lite, b.recovery)
}

// measurePurge measures the end of a job, and of the largest job also its start and the helpers at rest.
func (c *cluster) measurePurge(ctx context.Context, driver string, tasks int) error {
	job := c.many(driver, tasks)
	took, err := c.start(ctx, job)
	if err != nil {
		return err
	}
	if tasks == c.crowd {
		c.add(driver, float64(took), quantity{fmt.Sprintf("job of %d tasks, until all run", tasks), millis, 0, nil})
		if err := poll.Sleep(ctx, settle); err != nil {
			return err
		}
		idle, _, err := c.used(ctx, driver)
		if err != nil {
			return err
		}
		c.add(driver, idle, quantity{fmt.Sprintf("processor of helpers, %d tasks at rest", tasks), percent, 0, nil})
	}
	took, err = c.purge(ctx, job)
	c.add(driver, float64(took), quantity{fmt.Sprintf("purged: %d tasks, until nothing is left", tasks), millis, 1, nil})
	return err
}

func (c *cluster) measureStop(ctx context.Context, driver string) error {
	job := c.many(driver, stopped)
	if _, err := c.start(ctx, job); err != nil {
		return err
	}
	took, err := c.end(ctx, job, false, 10*time.Millisecond, func() (bool, error) {
		g, err := c.summary(job)
		return g.Complete == stopped, err
	})
	if err != nil {
		return err
	}
	c.add(driver, float64(took), quantity{fmt.Sprintf("stopped: %d tasks, until all have ended", stopped), millis, 0, nil})
	return c.stop(ctx, job)
}

// many is a job of sleepers that fits on a small machine.
func (c *cluster) many(driver string, tasks int) *api.Job {
	job := c.job(driver, tasks, c.sleeper())
	job.TaskGroups[0].Tasks[0].Require(&api.Resources{CPU: new(1), MemoryMB: new(10)})
	return job
}

// purge returns how long it took until the client had removed the directories of all allocations. No other job runs.
func (c *cluster) purge(ctx context.Context, job *api.Job) (time.Duration, error) {
	return c.end(ctx, job, true, 10*time.Millisecond, func() (bool, error) {
		entries, err := os.ReadDir(filepath.Join(c.agent.DataDir(), "alloc"))
		return len(entries) == 0, err
	})
}

// recover measures how long after a kill of the plugin the next one has adopted the last of the tasks.
func (c *cluster) recover(ctx context.Context) error {
	job := c.many(lite, c.recovery)
	if _, err := c.start(ctx, job); err != nil {
		return err
	}
	ps, err := c.processes(ctx)
	if err != nil {
		return err
	}
	killed := time.Now()
	for _, p := range ps {
		if p.role == isPlugin {
			if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
				return fmt.Errorf("failed to kill the plugin: %w", err)
			}
		}
	}
	var last time.Time
	err = wait(ctx, 500*time.Millisecond, func() (bool, error) {
		var n int
		n, last, err = c.reattached(job)
		return n >= c.recovery, err // more if a task was adopted twice
	})
	if err != nil {
		return fmt.Errorf("the plugin has not adopted %d tasks: %w", c.recovery, err)
	}
	name := fmt.Sprintf("plugin killed, until it has %d tasks again", c.recovery)
	c.add(lite, float64(last.Sub(killed)), quantity{name, millis, 0, nil})
	_, err = c.purge(ctx, job)
	return err
}

// reattached counts the tasks that have the driver's event, and returns the time of the last one.
func (c *cluster) reattached(job *api.Job) (n int, last time.Time, err error) {
	list, _, err := c.agent.Client().Jobs().Allocations(*job.ID, false, nil)
	if err != nil {
		return 0, last, fmt.Errorf("failed to watch job %s: %w", *job.ID, err)
	}
	for _, a := range list {
		if a.ClientStatus != api.AllocClientStatusRunning {
			return 0, last, fmt.Errorf("a task of job %s is %s", *job.ID, a.ClientStatus)
		}
		for _, e := range a.TaskStates["task"].Events {
			if !strings.HasPrefix(e.DisplayMessage, "Re-attached") {
				continue
			}
			n++
			if at := time.Unix(0, e.Time); at.After(last) {
				last = at
			}
		}
	}
	return n, last, nil
}
