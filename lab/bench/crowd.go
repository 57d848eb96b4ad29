// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// crowd is what jobs of many tasks need, as an operator sees it at the server and on the disk.
type crowd struct {
	start, stop, purge durations
	idle               map[string]float64 // processor time of helpers, with the most tasks
	most               int
	recovered          time.Duration // after the plugin was killed; raw_exec has no plugin
	recovery           int           // tasks at that
}

// durations are by driver and number of tasks.
type durations map[string]map[int]time.Duration

// noStatistics is Nomad's default, where no driver is asked for them; a lab's agents are (package agent).
const noStatistics = `telemetry {
  collection_interval = "1h"
}`

func measureCrowd(ctx context.Context, steps *term.Printer, binary, dir string, o options) (_ *crowd, err error) {
	c, closeAgent, err := startAgent(ctx, steps, binary, dir, noStatistics)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAgent()) }()
	r := &crowd{start: durations{}, stop: durations{}, purge: durations{}, idle: map[string]float64{}, most: o.crowd,
		recovery: o.recovery}
	for _, driver := range both {
		r.start[driver], r.stop[driver], r.purge[driver] = map[int]time.Duration{}, map[int]time.Duration{},
			map[int]time.Duration{}
	}
	for _, job := range []struct {
		tasks int
		purge bool
	}{{o.crowd, true}, {stopped, false}, {stopped, true}} {
		for _, driver := range both {
			if r.purge[driver][job.tasks] != 0 && job.purge {
				continue // of -quick
			}
			end := steps.Step("A job of %d tasks with %s is started and stopped", job.tasks, driver)
			err := r.measure(ctx, c, driver, job.tasks, job.purge, o)
			end(err, "")
			if err != nil {
				return nil, err
			}
		}
	}
	end := steps.Step("The plugin of %s is killed while %d tasks run", lite, o.recovery)
	r.recovered, err = c.recover(ctx, o.recovery)
	end(err, "")
	return r, err
}

// stopped is how many tasks are stopped, and purged.
const stopped = 100

func (r *crowd) measure(ctx context.Context, c *cluster, driver string, tasks int, purge bool, o options) error {
	job := c.many(driver, tasks)
	took, err := c.start(ctx, job)
	if err != nil {
		return err
	}
	if err := poll.Sleep(ctx, settle); err != nil {
		return err
	}
	if _, measured := r.start[driver][o.crowd]; !measured {
		r.start[driver][tasks] = took
		if err := poll.Sleep(ctx, settle); err != nil {
			return err
		}
		if r.idle[driver], _, err = c.used(ctx, driver, o.cpu); err != nil {
			return err
		}
	}
	took, err = c.end(ctx, job, purge)
	if err != nil {
		return err
	}
	if purge {
		r.purge[driver][tasks] = took
		return nil
	}
	r.stop[driver][tasks] = took
	return c.stop(ctx, job)
}

// many is a job of sleepers that fits on a small machine.
func (c *cluster) many(driver string, count int) *api.Job {
	command, args := c.sleeper()
	job := c.job(driver, count, command, args)
	job.TaskGroups[0].Tasks[0].Require(&api.Resources{CPU: new(1), MemoryMB: new(10)})
	return job
}

// end stops a job, and returns how long it took until the server shows that all its tasks have ended, or,
// of a job that is purged, until the client has removed all that it had of them.
func (c *cluster) end(ctx context.Context, job *api.Job, purge bool) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	left := c.alive
	if purge {
		left = c.allocations
	}
	begin := time.Now()
	if _, _, err := c.agent.Client().Jobs().Deregister(*job.ID, purge,
		(&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return 0, fmt.Errorf("failed to stop job %s: %w", *job.ID, err)
	}
	err := poll.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		n, err := left(ctx, job)
		return n == 0, err
	})
	if err != nil {
		return 0, fmt.Errorf("the tasks of job %s do not end: %w", *job.ID, err)
	}
	return time.Since(begin), nil
}

func (c *cluster) alive(ctx context.Context, job *api.Job) (int, error) {
	s, _, err := c.agent.Client().Jobs().Summary(*job.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return 0, fmt.Errorf("failed to watch job %s: %w", *job.ID, err)
	}
	return *job.TaskGroups[0].Count - s.Summary["group"].Complete, nil
}

// allocations counts the directories that allocations have: no other job runs.
func (c *cluster) allocations(context.Context, *api.Job) (int, error) {
	entries, err := os.ReadDir(filepath.Join(c.agent.DataDir(), "alloc"))
	return len(entries), err
}

// recover kills the plugin and returns how long it took until another one had taken over the last of so many tasks.
func (c *cluster) recover(ctx context.Context, count int) (time.Duration, error) {
	job := c.many(lite, count)
	if _, err := c.start(ctx, job); err != nil {
		return 0, err
	}
	if err := poll.Sleep(ctx, settle); err != nil {
		return 0, err
	}
	ps, err := c.processes(ctx)
	if err != nil {
		return 0, err
	}
	killed := time.Now()
	for _, p := range ps {
		if p.role == isPlugin {
			if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
				return 0, fmt.Errorf("failed to kill the plugin: %w", err)
			}
		}
	}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last time.Time
	err = poll.Until(wait, 500*time.Millisecond, func() (bool, error) {
		var n int
		n, last, err = c.reattached(wait, job)
		return n >= count, err // more where a task was taken over twice
	})
	if err != nil {
		return 0, fmt.Errorf("the plugin has not taken over %d tasks: %w", count, err)
	}
	_, err = c.end(ctx, job, true)
	return last.Sub(killed), err
}

// reattached counts the tasks of which the driver said so, and tells when it said the last.
func (c *cluster) reattached(ctx context.Context, job *api.Job) (n int, last time.Time, err error) {
	list, _, err := c.agent.Client().Jobs().Allocations(*job.ID, false, (&api.QueryOptions{}).WithContext(ctx))
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

// compare adds to the table of results.
func (r *crowd) compare(c *comparison) {
	row := func(name string, took durations, tasks int, bar float64) {
		c.add(fmt.Sprintf(name, tasks), millis, nanos(took[lite][tasks]), nanos(took[raw][tasks]), bar)
	}
	row("job of %d tasks, until all run", r.start, r.most, 0)
	row("  stopped: %d tasks, until all have ended", r.stop, stopped, 0)
	row("  purged: %d tasks, until nothing is left", r.purge, stopped, purgeBar)
	if r.most != stopped {
		row("  purged: %d tasks, until nothing is left", r.purge, r.most, purgeBar)
	}
	c.add(fmt.Sprintf("processor of helpers, %d tasks at rest", r.most), percent, r.idle[lite], r.idle[raw], 0)
	c.rows = append(c.rows, []string{
		fmt.Sprintf("plugin killed, until it has %d tasks again", r.recovery), ms(r.recovered), "no plugin", "", "",
	})
}
