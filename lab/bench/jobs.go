// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// noStatistics keeps Nomad from collecting statistics from drivers, as by default. A lab's agents do so each second.
const noStatistics = `telemetry {
  collection_interval = "1h"
}`

// settle is the time until the agent is idle again after a start: Nomad batches its updates to the server, and the Go
// runtimes return memory.
const settle = 3 * time.Second

// contest is a plugin and its peer: two ways to run the same tasks.
type contest struct {
	*bench
	pair    [2]string                                // the first word of each is the driver's name in Nomad
	plugins []agent.Plugin                           // of the first, and of its peer if that is a plugin, too
	config  map[string]any                           // of the first, for starts without an agent; nil: jobs only
	state   string                                   // directory of its supervisor
	tasks   int                                      // of the large job
	of      [2]func(command []string) map[string]any // a task's config block

	agent  agent.Agent
	marker string // in the arguments of tasks that are not counted; empty counts all
	n      int
}

func (b *bench) measureLite(ctx context.Context) error {
	state := filepath.Join(b.dir, "lite")
	return (&contest{
		bench: b, pair: [2]string{"exec-lite", "raw_exec"}, plugins: []agent.Plugin{b.lite()}, tasks: b.tasks,
		state: state, config: map[string]any{"state_dir": state}, marker: sleeper()[1],
		of: [2]func(command []string) map[string]any{asIs, asIs},
	}).measure(ctx)
}

func (b *bench) lite() agent.Plugin {
	return agent.Plugin{Binary: b.binaries["exec-lite"], Config: `state_dir = "${state_dir}"`}
}

// measureFloor compares jobs of exec-lite with those of a driver that starts nothing, which show Nomad's own share. If
// peer is empty, exec-lite has no peer, and each of its processes is measured.
func (b *bench) measureFloor(ctx context.Context, peer string, tasks int) error {
	return (&contest{
		bench: b, pair: [2]string{"exec-lite", peer}, tasks: tasks, marker: sleeper()[1],
		plugins: []agent.Plugin{b.lite(), {Binary: b.binaries["floor"]}},
		of:      [2]func(command []string) map[string]any{asIs, asIs},
	}).measure(ctx)
}

func asIs(command []string) map[string]any {
	return map[string]any{"command": command[0], "args": command[1:]}
}

// sleeper returns the command of a task that only sleeps. The number of seconds is its marker.
func sleeper() []string { return []string{"/bin/sleep", fmt.Sprintf("1%07d", os.Getpid())} }

func (c *contest) measure(ctx context.Context) (err error) {
	if c.config != nil {
		err = c.step(func() error { return c.measureStarts(ctx) }, "%d starts by %s and by %s", c.starts, c.pair[0],
			c.pair[1])
	}
	if err != nil {
		return err
	}
	err = c.step(func() (err error) {
		c.agent, err = agent.Run(ctx, agent.Options{
			Runtime: agent.Host, Dir: filepath.Join(c.dir, "agent-"+c.pair[0]), Name: "outrider-bench",
			Progress: c.steps.Progress, Config: noStatistics, Plugins: c.plugins,
		})
		return err
	}, "Starting an agent")
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, c.agent.Close(ctx))
	}()
	for round := range c.rounds {
		for side, name := range c.pair {
			if name == "" {
				continue
			}
			err := c.step(func() error {
				err := c.measureJobs(ctx, side)
				if err != nil || c.config == nil {
					return err
				}
				return c.measureOutput(ctx, side)
			}, "%s, round %d of %d: jobs of 1 and %d tasks", name, round+1, c.rounds, c.tasks)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// measureStarts times starts by calls of the drivers, without Nomad's client.
func (c *contest) measureStarts(ctx context.Context) (err error) {
	s, err := newStarter(filepath.Join(c.dir, "start-"+c.pair[0]))
	if err != nil {
		return err
	}
	defer s.began.Close()
	ours, end, err := openPlugin(ctx, c.plugins[0].Binary, c.state, c.config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
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

// measureJobs measures jobs of sleeping tasks: the time until all run, and the usage of their helpers.
func (c *contest) measureJobs(ctx context.Context, side int) error {
	var memory []float64
	for _, count := range []int{1, c.tasks} {
		job := c.job(side, count, sleeper())
		took, err := c.start(ctx, job)
		if err != nil {
			return err
		}
		first, err := c.helpers(ctx, side)
		if err != nil {
			return err
		}
		memory = append(memory, first.memory)
		if c.pair[1] == "" {
			for _, name := range slices.Sorted(maps.Keys(first.each)) {
				c.add(c.pair, fmt.Sprintf("memory of %s, %d tasks (PSS)", name, count), "kB", side, first.each[name])
			}
		}
		if count > 1 {
			c.add(c.pair, fmt.Sprintf("job of %d tasks, until all run", count), "ms", side, milliseconds(took))
			if err := poll.Sleep(ctx, c.window); err != nil {
				return err
			}
			last, err := c.helpers(ctx, side)
			if err != nil {
				return err
			}
			perTick := 100 / float64(task.ClockTick) / c.window.Seconds()
			c.add(c.pair, fmt.Sprintf("processor, %d tasks at rest", count), "% of a core", side,
				(last.ticks-first.ticks)*perTick)
		}
		if err := c.stop(ctx, job); err != nil {
			return err
		}
	}
	c.add(c.pair, fmt.Sprintf("memory a task of %d (PSS)", c.tasks), "kB", side, (memory[1]-memory[0])/float64(c.tasks-1))
	return nil
}

// measureOutput measures how long a task with much output runs.
func (c *contest) measureOutput(ctx context.Context, side int) error {
	job := c.job(side, 1, []string{"/usr/bin/seq", "1", strconv.Itoa(c.lines)})
	job.Type = new(api.JobTypeBatch)
	var state *api.TaskState
	err := c.submit(ctx, job, 50*time.Millisecond, func() (bool, error) {
		allocs, _, err := c.agent.Client().Jobs().Allocations(*job.ID, false, nil)
		if err != nil || len(allocs) == 0 {
			return false, err
		}
		state = allocs[0].TaskStates["task"]
		return state != nil && state.State == "dead", nil
	})
	if err != nil {
		return err
	}
	if state.Failed {
		return fmt.Errorf("the task of %s failed", c.pair[side])
	}
	measured := fmt.Sprintf("a task that prints %d million lines", c.lines/1_000_000)
	c.add(c.pair, measured, "ms", side, milliseconds(state.FinishedAt.Sub(state.StartedAt)))
	return c.stop(ctx, job)
}

// helpers returns the usage of the helper processes of a side's tasks. A plugin also runs during the jobs of its peer;
// that usage is not counted.
func (c *contest) helpers(ctx context.Context, side int) (use, error) {
	pid, err := c.agent.PID(ctx)
	if err != nil {
		return use{}, err
	}
	list, err := processes(pid, c.agent.Info().Dir, c.marker)
	if err != nil {
		return use{}, err
	}
	return used(slices.DeleteFunc(list, func(pid int) bool { return c.isOther(side, pid) }))
}

// isOther reports whether a process belongs to the other side's plugin. A supervisor belongs to the first plugin.
func (c *contest) isOther(side, pid int) bool {
	program, _, _ := strings.Cut(string(commandLine(pid)), "\x00")
	owner := slices.IndexFunc(c.plugins, func(p agent.Plugin) bool {
		return filepath.Base(program) == filepath.Base(p.Binary) || program == "outrider-supervisor"
	})
	return owner >= 0 && owner != side
}

// job describes count tasks, each in its own allocation.
func (c *contest) job(side, count int, command []string) *api.Job {
	c.n++
	id := fmt.Sprintf("bench-%d", c.n)
	t := api.NewTask("task", strings.Fields(c.pair[side])[0]).
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

// start submits a job and returns how long it took until the server showed all its tasks as running. It returns when
// the agent is idle again.
func (c *contest) start(ctx context.Context, job *api.Job) (time.Duration, error) {
	want := *job.TaskGroups[0].Count
	begin := time.Now()
	err := c.submit(ctx, job, 10*time.Millisecond, func() (bool, error) {
		s, _, err := c.agent.Client().Jobs().Summary(*job.ID, nil)
		if err != nil {
			return false, err
		}
		g := s.Summary["group"]
		if g.Failed+g.Lost > 0 {
			return false, fmt.Errorf("%d tasks failed", g.Failed+g.Lost)
		}
		return g.Running == want, nil
	})
	took := time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("failed to start the %d tasks of job %s: %w", want, *job.ID, err)
	}
	return took, poll.Sleep(ctx, settle)
}

// submit submits a job and polls until done.
func (c *contest) submit(ctx context.Context, job *api.Job, interval time.Duration, done func() (bool, error)) error {
	_, _, err := c.agent.Client().Jobs().Register(job, nil)
	if err != nil {
		return fmt.Errorf("failed to submit job %s: %w", *job.ID, err)
	}
	return wait(ctx, interval, done)
}

// stop purges a job and waits until the client has removed the directories of its allocations.
func (c *contest) stop(ctx context.Context, job *api.Job) error {
	if _, _, err := c.agent.Client().Jobs().Deregister(*job.ID, true, nil); err != nil {
		return fmt.Errorf("failed to stop job %s: %w", *job.ID, err)
	}
	err := wait(ctx, 50*time.Millisecond, func() (bool, error) {
		entries, err := os.ReadDir(filepath.Join(c.agent.DataDir(), "alloc"))
		return len(entries) == 0, err
	})
	if err != nil {
		return fmt.Errorf("failed to wait for the end of job %s: %w", *job.ID, err)
	}
	return nil
}
