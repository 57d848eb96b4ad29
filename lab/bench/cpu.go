// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// cpu is the processor time of what is not the task, a second of a job in which
// each task prints a line a second.
type cpu struct {
	tasks          int
	helpers, agent map[string]float64 // fractions of one core
}

// clockTick is USER_HZ, which is 100 on every architecture that Nomad knows.
const clockTick = time.Second / 100

func measureCPU(ctx context.Context, steps *term.Printer, c *cluster, o options) (*cpu, error) {
	r := &cpu{tasks: o.tasks, helpers: map[string]float64{}, agent: map[string]float64{}}
	command, args := c.talker()
	for _, driver := range both {
		end := steps.Step("Processor time while %d tasks of %s print a line a second", o.tasks, driver)
		err := func() error {
			job := c.job(driver, o.tasks, command, args)
			if _, err := c.start(ctx, job); err != nil {
				return err
			}
			if err := poll.Sleep(ctx, settle); err != nil {
				return err
			}
			var err error
			if r.helpers[driver], r.agent[driver], err = c.used(ctx, driver, o.cpu); err != nil {
				return err
			}
			return c.stop(ctx, job)
		}()
		end(err, "")
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// used is which part of a core what is not a task uses.
func (c *cluster) used(ctx context.Context, driver string, d time.Duration) (helpers, agent float64, err error) {
	begin := time.Now()
	before, err := c.ticks(ctx, driver)
	if err != nil {
		return 0, 0, err
	}
	if err := poll.Sleep(ctx, d); err != nil {
		return 0, 0, err
	}
	after, err := c.ticks(ctx, driver)
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(begin)
	for p, t := range after {
		used := (time.Duration(t-before[p]) * clockTick).Seconds() / took.Seconds()
		if p.role == isAgent {
			agent += used
		} else {
			helpers += used
		}
	}
	return helpers, agent, nil
}

// ticks is the processor time so far of each process that is not a task's.
func (c *cluster) ticks(ctx context.Context, driver string) (map[process]int, error) {
	ps, err := c.processes(ctx)
	if err != nil {
		return nil, err
	}
	ticks := map[process]int{}
	for _, p := range ps {
		if p.role != isAgent && !p.role.helps(driver) {
			continue
		}
		st, err := task.ReadStat(p.pid)
		if p.role == isOther && ended(err) { // what somebody has started for a moment
			continue
		}
		if err != nil {
			return nil, err
		}
		ticks[p] = int(st.UTime + st.STime)
	}
	return ticks, nil
}
