// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// memoryRows are the rows of each kind of memory. Each shows the memory of one more task: the
// difference of two jobs, divided by the difference of their tasks. In the first round the
// plugin has never started so many tasks, and its heap still grows to the size that it retains.
var memoryRows = [len(usage{})][]quantity{
	pss: {
		{"helper memory a task (PSS), median of rounds", kB, 300, nil},
		{"– in the first round, the plugin being new", kB, 0, first},
	},
	anon:     {{"– of it heaps and stacks", kB, 0, nil}},
	private:  {{"– private dirty", kB, 0, nil}},
	tables:   {{"– page tables, not in PSS", kB, 0, nil}},
	threads:  {{"– threads", number, 0, nil}},
	agentPSS: {{"– growth of the agent (PSS)", kB, 0, nil}},
}

// measureJobs measures jobs of sleeping tasks: the time until all run, and the memory of the
// processes that are not tasks.
func (c *cluster) measureJobs(ctx context.Context) error {
	for round := range c.rounds {
		err := c.turns(func(driver string) error { return c.round(ctx, driver) },
			"round %d of %d, jobs of 1 and %d tasks", round+1, c.rounds, c.tasks)
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) round(ctx context.Context, driver string) error {
	_, one, _, err := c.sleepers(ctx, driver, 1)
	if err != nil {
		return err
	}
	took, all, counts, err := c.sleepers(ctx, driver, c.tasks)
	if err != nil {
		return err
	}
	for kind, rows := range memoryRows {
		c.add(driver, float64(all[kind]-one[kind])/float64(c.tasks-1), rows...)
	}
	name := fmt.Sprintf("job of %d tasks, until all run, median", c.tasks)
	c.add(driver, float64(took), quantity{name, millis, 2.5, nil})
	c.note("A round of %s: all %d tasks ran after %s; PSS of helpers %d kB with 1 task, %d kB with all; processes: %s.",
		driver, c.tasks, ms(took), one[pss], all[pss], countsText(counts, driver))
	return nil
}

// sleepers measures one job.
func (c *cluster) sleepers(ctx context.Context, driver string, count int) (took time.Duration, u usage,
	counts map[role]int, err error) {
	job := c.job(driver, count, c.sleeper())
	if took, err = c.start(ctx, job); err != nil {
		return 0, u, nil, err
	}
	if u, counts, err = c.read(ctx, driver); err != nil {
		return 0, u, nil, err
	}
	return took, u, counts, c.stop(ctx, job)
}

// read takes the median of several readings, since the heaps of Go programs grow and
// shrink, and counts the processes.
func (c *cluster) read(ctx context.Context, driver string) (usage, map[role]int, error) {
	var all [len(usage{})][]int // the readings of each kind of memory
	var counts map[role]int
	for range c.readings {
		var sum usage
		counts = map[role]int{}
		err := c.helpers(ctx, driver, func(p process) error {
			m, err := memoryOf(p.pid)
			if err != nil {
				return err
			}
			counts[p.role]++
			if p.role == isAgent {
				m = usage{agentPSS: m[pss]}
			}
			for kind, n := range m {
				sum[kind] += n
			}
			return nil
		})
		if err != nil {
			return usage{}, nil, err
		}
		for kind, n := range sum {
			all[kind] = append(all[kind], n)
		}
		if err := poll.Sleep(ctx, 300*time.Millisecond); err != nil {
			return usage{}, nil, err
		}
	}
	var u usage
	for kind, readings := range all {
		u[kind] = median(readings)
	}
	return u, counts, nil
}

// countsText lists the processes beside the agent and the tasks.
func countsText(n map[role]int, driver string) string {
	var s []string
	for _, r := range []role{isPlugin, isSupervisor, isCollector, isExecutor, isLogmon, isOther} {
		if r.helps(driver) && (n[r] > 0 || r != isOther) {
			s = append(s, fmt.Sprintf("%s %d", r, n[r]))
		}
	}
	return strings.Join(s, ", ")
}
