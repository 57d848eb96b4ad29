// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

const clockTick = time.Second / task.ClockTick

// measureCPU measures the processor time of the processes that are not tasks, during a job in
// which each task prints a line a second.
func (c *cluster) measureCPU(ctx context.Context) error {
	return c.turns(func(driver string) error {
		job := c.job(driver, c.tasks, c.talker())
		if _, err := c.start(ctx, job); err != nil {
			return err
		}
		helpers, agent, err := c.used(ctx, driver)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("processor of helpers, %d tasks at 1 line/s", c.tasks)
		c.add(driver, helpers, quantity{name, percent, 0, nil})
		c.add(driver, agent, quantity{"– and of the agent", percent, 0, nil})
		return c.stop(ctx, job)
	}, "processor time while %d tasks print a line a second", c.tasks)
}

// used is the part of a core that the processes that are not tasks use.
func (c *cluster) used(ctx context.Context, driver string) (helpers, agent float64, err error) {
	begin := time.Now()
	before, err := c.ticks(ctx, driver)
	if err != nil {
		return 0, 0, err
	}
	if err := poll.Sleep(ctx, c.cpu); err != nil {
		return 0, 0, err
	}
	after, err := c.ticks(ctx, driver)
	took := time.Since(begin)
	for p, t := range after {
		used := (time.Duration(t-before[p]) * clockTick).Seconds() / took.Seconds()
		if p.role == isAgent {
			agent += used
		} else {
			helpers += used
		}
	}
	return helpers, agent, err
}

// ticks is the processor time so far of each process that is not a task's.
func (c *cluster) ticks(ctx context.Context, driver string) (map[process]int, error) {
	ticks := map[process]int{}
	return ticks, c.helpers(ctx, driver, func(p process) error {
		st, err := task.ReadStat(p.pid)
		if err == nil {
			ticks[p] = int(st.UTime + st.STime)
		}
		return err
	})
}
