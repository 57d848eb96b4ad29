// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/helper/uuid"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/usage"
)

// noStatistics restores Nomad's default: the client asks drivers for no statistics. A lab's agents ask each second.
const noStatistics = `telemetry {
  collection_interval = "1h"
}`

// settle is the wait after tasks start: the agent still batches updates to the server, and Go returns memory.
const settle = 3 * time.Second

// contest compares a plugin (side 0) with its peer (side 1): each runs the same tasks.
type contest struct {
	*bench
	pair    [2]string                                // names of the sides; the first word is the driver's name
	plugins []agent.Plugin                           // for the agent; the compared plugin comes first
	config  map[string]any                           // of plugins[0], to measure starts without an agent; nil: none
	tasks   int                                      // of the large job
	of      [2]func(command []string) map[string]any // returns the config block of a side's task

	agent  agent.Agent
	marker string // in a task's arguments: such processes are not counted; empty: all are
}

// lite returns a contest of exec-lite with raw_exec, or with floor, a driver that starts nothing and so shows what
// Nomad itself uses. If peer is empty, each process of exec-lite is measured alone, without a comparison.
func (b *bench) lite(peer string, tasks int) *contest {
	c := &contest{
		bench: b, pair: [2]string{"exec-lite", peer}, tasks: tasks, marker: sleeper()[1],
		plugins: []agent.Plugin{{Binary: b.binaries["exec-lite"], Config: `state_dir = "${state_dir}"`}},
		of:      [2]func(command []string) map[string]any{asIs, asIs},
	}
	if peer == "floor" {
		c.plugins = append(c.plugins, agent.Plugin{Binary: b.binaries["floor"]})
	}
	return c
}

// isolated is like lite, but the tasks of exec-lite use every isolation except a PID namespace.
func (b *bench) isolated(peer string, tasks int) *contest {
	c := b.lite(peer, tasks)
	c.pair[0] = "exec-lite isolated"
	c.plugins[0].Config += `
isolate      = ["tmp", "ipc"]
no_new_privs = true
seccomp      = "default"
unveil       = "strict"`
	return c
}

func asIs(command []string) map[string]any {
	return map[string]any{"command": command[0], "args": command[1:]}
}

// sleeper returns the command of a sleeping task. The seconds contain this program's pid, see contest.marker.
func sleeper() []string { return []string{"/bin/sleep", fmt.Sprintf("1%07d", os.Getpid())} }

func (c *contest) measure(ctx context.Context) (err error) {
	if c.config != nil {
		log.Printf("measuring %d starts by %s and by %s", c.starts, c.pair[0], c.pair[1])
		err = c.measureStarts(ctx)
	}
	if err == nil {
		c.agent, err = agent.Run(ctx, agent.Options{
			Runtime: agent.Host, Binary: c.nomad, Dir: filepath.Join(c.dir, "agent-"+c.driver(0)), Name: "outrider-bench",
			Config: noStatistics, Plugins: c.plugins,
		})
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.agent.Close(context.WithoutCancel(ctx))) }()
	for round := range c.rounds {
		for side, name := range c.pair {
			if name == "" {
				continue
			}
			log.Printf("%s, round %d of %d: jobs of 1 and %d tasks", name, round+1, c.rounds, c.tasks)
			err := c.measureJobs(ctx, side)
			if err == nil && c.config != nil {
				err = c.measureOutput(ctx, side)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// measureStarts measures the latency of starts by calling the drivers directly, without Nomad's client.
func (c *contest) measureStarts(ctx context.Context) error {
	s, err := newStarter(filepath.Join(c.dir, "start-"+c.pair[0]))
	if err != nil {
		return err
	}
	defer s.began.Close()
	ours, err := openPlugin(c.plugins[0].Binary, c.config)
	if err != nil {
		return err
	}
	defer ours.close()
	raw, err := openRaw()
	if err != nil {
		return err
	}
	defer raw.close()
	var ways [2]way
	for side, d := range []*driver{ours, raw} {
		ways[side] = s.by(ctx, d, c.of[side]([]string{"/bin/sh", "-c", "echo >" + s.fifo}))
	}
	return c.takeTurns(ctx, c.pair, "start, StartTask to first line", ways)
}

// measureJobs measures jobs of sleeping tasks: the time until all tasks run, and the usage of their helpers.
func (c *contest) measureJobs(ctx context.Context, side int) error {
	var memory []float64
	for _, count := range []int{1, c.tasks} {
		job := c.job(side, count, sleeper())
		begin := time.Now()
		err := c.submit(ctx, job, func(s api.TaskGroupSummary) bool { return s.Running == count })
		took := time.Since(begin)
		if err == nil {
			err = poll.Sleep(ctx, settle)
		}
		if err != nil {
			return err
		}
		first, err := c.helpers(side)
		if err != nil {
			return err
		}
		bytes, before := usage.Total(first)
		memory = append(memory, bytes/1024)
		for _, p := range first {
			if c.pair[1] == "" {
				name := strings.TrimSpace(filepath.Base(p.Args[0]) + " " + strings.Join(p.Args[1:min(len(p.Args), 2)], ""))
				c.add(c.pair, fmt.Sprintf("memory of %s, %d tasks (PSS)", name, count), "kB", side, p.Memory/1024)
			}
		}
		if count > 1 {
			c.add(c.pair, fmt.Sprintf("job of %d tasks, until all run", count), "ms", side, milliseconds(took))
			if err := poll.Sleep(ctx, c.window); err != nil {
				return err
			}
			last, err := c.helpers(side)
			if err != nil {
				return err
			}
			_, after := usage.Total(last)
			c.add(c.pair, fmt.Sprintf("processor, %d tasks at rest", count), "% of a core", side,
				100*(after-before)/c.window.Seconds())
		}
		if err := c.stop(ctx, job); err != nil {
			return err
		}
	}
	c.add(c.pair, fmt.Sprintf("memory per task, %d tasks (PSS)", c.tasks), "kB", side,
		(memory[1]-memory[0])/float64(c.tasks-1))
	return nil
}

// measureOutput measures how long a task with much output runs.
func (c *contest) measureOutput(ctx context.Context, side int) error {
	job := c.job(side, 1, []string{"/usr/bin/seq", "1", strconv.Itoa(c.lines)})
	job.Type = new(api.JobTypeBatch)
	err := c.submit(ctx, job, func(s api.TaskGroupSummary) bool { return s.Complete == 1 })
	if err != nil {
		return err
	}
	allocs, _, err := c.agent.Client().Jobs().Allocations(*job.ID, false, nil)
	if err != nil {
		return fmt.Errorf("failed to list the tasks of job %s: %w", *job.ID, err)
	}
	state := allocs[0].TaskStates["task"]
	measured := fmt.Sprintf("a task that prints %d million lines", c.lines/1_000_000)
	c.add(c.pair, measured, "ms", side, milliseconds(state.FinishedAt.Sub(state.StartedAt)))
	return c.stop(ctx, job)
}

// helpers measures the helper processes of a side's tasks: those below the agent, and the supervisor. It omits the
// other side's plugin, which runs all the time.
func (c *contest) helpers(side int) ([]usage.Process, error) {
	ids, err := agent.Processes(c.agent.Info().Dir)
	if err != nil {
		return nil, err
	}
	return usage.Of(ids, func(pid int, args []string) bool {
		isTask := c.marker != "" && strings.Contains(strings.Join(args, " "), c.marker)
		plugin, isPlugin := strings.CutPrefix(filepath.Base(args[0]), agent.DriverPrefix)
		isOther := isPlugin && plugin != c.driver(side) || args[0] == "outrider-supervisor" && side != 0
		return pid != c.agent.Info().Process.PID && !isTask && !isOther
	})
}

// driver returns the name of a side's driver in Nomad.
func (c *contest) driver(side int) string { return strings.Fields(c.pair[side])[0] }

// job returns a job of count tasks, each in its own allocation.
func (c *contest) job(side, count int, command []string) *api.Job {
	id := "bench-" + uuid.Short()
	t := api.NewTask("task", c.driver(side)).
		Require(&api.Resources{CPU: new(1), MemoryMB: new(16)}).
		SetLogConfig(&api.LogConfig{MaxFiles: new(2), MaxFileSizeMB: new(10)})
	for name, value := range c.of[side](command) {
		t.SetConfig(name, value)
	}
	t.KillTimeout = new(time.Second)
	group := api.NewTaskGroup("group", count).AddTask(t)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(21)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	return api.NewServiceJob(id, id, "global", 50).AddTaskGroup(group)
}

// submit submits a job, and polls the summary of its task group on the server until done returns true for it.
func (c *contest) submit(ctx context.Context, job *api.Job, done func(api.TaskGroupSummary) bool) error {
	_, _, err := c.agent.Client().Jobs().Register(job, nil)
	if err != nil {
		return fmt.Errorf("failed to submit job %s: %w", *job.ID, err)
	}
	return wait(ctx, "job "+*job.ID, func() (bool, error) {
		s, _, err := c.agent.Client().Jobs().Summary(*job.ID, nil)
		if err != nil {
			return false, err
		}
		g := s.Summary["group"]
		if g.Failed+g.Lost > 0 {
			return false, fmt.Errorf("%d tasks failed", g.Failed+g.Lost)
		}
		return done(g), nil
	})
}

// stop purges a job and waits until the client has removed the directories of its allocations.
func (c *contest) stop(ctx context.Context, job *api.Job) error {
	err := agent.Purge(ctx, c.agent.Client(), api.DefaultNamespace, *job.ID)
	if err != nil {
		return err
	}
	return wait(ctx, "the end of job "+*job.ID, func() (bool, error) {
		entries, err := os.ReadDir(filepath.Join(c.agent.DataDir(), "alloc"))
		return len(entries) == 0, err
	})
}
