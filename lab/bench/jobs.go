// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// jobs is what jobs of sleeping tasks cost: time until all run, and memory of
// what is not the task.
type jobs struct {
	tasks  int
	took   map[string][]time.Duration // a job of all tasks, each round
	one    map[string][]usage         // with 1 task, each round
	all    map[string][]usage         // with all tasks, each round
	counts map[string]map[role]int    // of processes, with all tasks
}

// usage is the memory of the agent, and of what else is not the task.
type usage struct {
	helpers, agent memory
	plugin         int // its part of helpers, PSS in kB
}

// settle is how long what a start has stirred up takes to calm down: Nomad
// gathers its updates to the server, and the Go runtimes give memory back.
const settle = 2 * time.Second

func measureJobs(ctx context.Context, steps *term.Printer, c *cluster, o options) (*jobs, error) {
	j := &jobs{
		tasks: o.tasks, took: map[string][]time.Duration{},
		one: map[string][]usage{}, all: map[string][]usage{}, counts: map[string]map[role]int{},
	}
	command, args := c.sleeper()
	for round := range o.rounds {
		for _, driver := range both {
			end := steps.Step("Round %d of %d: jobs of 1 and %d tasks with %s", round+1, o.rounds, o.tasks, driver)
			err := func() error {
				one := c.job(driver, 1, command, args)
				if _, err := c.start(ctx, one); err != nil {
					return err
				}
				u, _, err := c.read(ctx, driver, o.readings)
				if err != nil {
					return err
				}
				j.one[driver] = append(j.one[driver], u)
				if err := c.stop(ctx, one); err != nil {
					return err
				}

				all := c.job(driver, o.tasks, command, args)
				took, err := c.start(ctx, all)
				if err != nil {
					return err
				}
				j.took[driver] = append(j.took[driver], took)
				u, counts, err := c.read(ctx, driver, o.readings)
				if err != nil {
					return err
				}
				j.all[driver], j.counts[driver] = append(j.all[driver], u), counts
				return c.stop(ctx, all)
			}()
			end(err, "")
			if err != nil {
				return nil, err
			}
		}
	}
	return j, nil
}

// read takes the median of several readings: the heaps of Go programs come and go.
func (c *cluster) read(ctx context.Context, driver string, readings int) (usage, map[role]int, error) {
	if err := poll.Sleep(ctx, settle); err != nil {
		return usage{}, nil, err
	}
	var all []usage
	var counts map[role]int
	for range readings {
		u, n, err := c.readOnce(ctx, driver)
		if err != nil {
			return usage{}, nil, err
		}
		all, counts = append(all, u), n
		if err := poll.Sleep(ctx, 300*time.Millisecond); err != nil {
			return usage{}, nil, err
		}
	}
	return medianUsage(all), counts, nil
}

func (c *cluster) readOnce(ctx context.Context, driver string) (usage, map[role]int, error) {
	ps, err := c.processes(ctx)
	if err != nil {
		return usage{}, nil, err
	}
	var u usage
	counts := map[role]int{}
	for _, p := range ps {
		counts[p.role]++
		if p.role != isAgent && !p.role.helps(driver) {
			continue
		}
		m, err := memoryOf(p.pid)
		if p.role == isOther && ended(err) { // what somebody has started for a moment
			counts[p.role]--
			continue
		}
		if err != nil {
			return usage{}, nil, fmt.Errorf("failed to read the memory of the %s: %w", p.role, err)
		}
		if p.role == isAgent {
			u.agent.add(m)
		} else {
			u.helpers.add(m)
		}
		if p.role == isPlugin {
			u.plugin += m[pss]
		}
	}
	return u, counts, nil
}

func medianUsage(all []usage) (m usage) {
	for i := range m.helpers {
		m.helpers[i] = median(all, func(u usage) int { return u.helpers[i] })
		m.agent[i] = median(all, func(u usage) int { return u.agent[i] })
	}
	m.plugin = median(all, func(u usage) int { return u.plugin })
	return m
}

// perTask is what one more task adds: in each round the difference of all tasks
// and one, by the number of tasks between, and of that the median.
func (j *jobs) perTask(driver string, of func(usage) int) float64 {
	return median(j.rounds(driver, of), func(f float64) float64 { return f })
}

// rounds is perTask of each round. In the first one the plugin has never started
// that many tasks, and its heap grows to what it then keeps.
func (j *jobs) rounds(driver string, of func(usage) int) []float64 {
	var list []float64
	for i, all := range j.all[driver] {
		list = append(list, float64(of(all)-of(j.one[driver][i]))/float64(j.tasks-1))
	}
	return list
}
