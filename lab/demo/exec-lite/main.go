// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command exec-lite shows the processes behind exec-lite's tasks. When these processes are
// killed, the tasks continue and exit codes stay exact. It runs a Nomad agent of its own and
// removes everything at the end: go tool mage demo:exec-lite.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/demo/forest"
	"github.com/outrider-dev/outrider/lab/demo/stage"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// jobs are a pair: the same three tasks with raw_exec and with exec-lite.
//
//go:embed demo.nomad.hcl
var jobs string

func main() {
	stage.Demo{
		Plugins: map[string]string{"exec-lite": `state_dir = "${state_dir}"`},
		Play:    func(ctx context.Context, a agent.Agent) error { return (&demo{agent: a}).acts(ctx) },
	}.Main()
}

type demo struct {
	agent agent.Agent
}

func (d *demo) acts(ctx context.Context) error {
	stage.Say("Three tasks with raw_exec, Nomad's own driver")
	raw, err := d.submit(ctx, "raw_exec", 3)
	if err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	stage.Note("Two helpers for each task: a logmon for its output, an executor to wait for it.")
	if err := raw.Stop(true); err != nil {
		return err
	}

	stage.Say("The same three tasks with exec-lite")
	lite, err := d.submit(ctx, "exec-lite", 3)
	if err != nil {
		return err
	}
	if err := d.gone(ctx, "nomad executor"); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	stage.Note("One plugin, one supervisor with its collector, and the tasks. A hundred tasks have the same three.")
	tasks, err := d.taskPIDs(ctx)
	if err != nil {
		return err
	}

	stage.Say("kill -9 of the plugin and of the supervisor, at once")
	plugin, supervisor, err := d.helpers(ctx)
	if err != nil {
		return err
	}
	stage.Note("killing plugin %d and supervisor %d; meanwhile the first task has to exit with code 7",
		plugin, supervisor)
	if _, err := d.agent.Exec(ctx, "sh", "-c", fmt.Sprintf("kill -9 %d %d", plugin, supervisor)); err != nil {
		return err
	}
	if _, err := d.agent.Exec(ctx, "sh", "-c", fmt.Sprintf("kill -TERM %d", tasks[0])); err != nil {
		return err
	}
	if err := d.recovered(ctx, plugin, supervisor); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	now, err := d.taskPIDs(ctx)
	if err != nil {
		return err
	}
	for _, pid := range tasks[1:] {
		if !slices.Contains(now, pid) {
			return fmt.Errorf("task %d did not live on", pid)
		}
	}
	stage.Note("Tasks %d and %d continued. A new plugin has a new supervisor, which has adopted them.",
		tasks[1], tasks[2])

	stage.Say("What Nomad reports for the task that ended while neither ran")
	return d.exitCode(ctx, lite.ID, 7)
}

// submit runs the job with a driver and waits until all tasks run.
func (d *demo) submit(ctx context.Context, driver string, count int) (*stage.Job, error) {
	id := "demo-" + strings.ReplaceAll(driver, "_", "-")
	start := time.Now()
	filled := strings.NewReplacer("DRIVER", driver, "JOB", id, "# demo task", mark, "COUNT", fmt.Sprint(count))
	job, err := stage.Submit(d.agent, filled.Replace(jobs))
	if err != nil {
		return nil, err
	}
	err = stage.Until(ctx, "tasks of "+id+" to run", func() (bool, error) {
		s, _, err := d.agent.Client().Jobs().Summary(id, nil)
		return err == nil && s.Summary["g"].Running == count, err
	})
	if err == nil {
		stage.Note("%d tasks run after %.1f s", count, time.Since(start).Seconds())
	}
	return job, err
}

// mark is in the arguments of each of this demo's tasks.
var mark = fmt.Sprintf("# demo %d", os.Getpid())

// ours are the agent and its descendants, and the supervisor and the tasks, which may have
// init as their parent.
func (d *demo) ours(ctx context.Context) ([]forest.Process, error) {
	all, err := forest.Read(ctx, d.agent.Exec)
	if err != nil {
		return nil, err
	}
	pid, err := d.agent.PID(ctx)
	if err != nil {
		return nil, err
	}
	found := forest.Below(all, pid)
	for _, p := range all {
		supervisor := strings.HasPrefix(p.Args, "outrider-supervisor ") && strings.Contains(p.Args, " "+d.agent.StateDir())
		task := strings.HasPrefix(p.Args, "/bin/sh -c "+mark)
		known := slices.ContainsFunc(found, func(q forest.Process) bool { return q.PID == p.PID })
		if (supervisor || task) && !known {
			found = append(found, forest.Below(all, p.PID)...)
		}
	}
	return found, nil
}

func (d *demo) show(ctx context.Context) error {
	ours, err := d.ours(ctx)
	if err != nil {
		return err
	}
	forest.Print(os.Stdout, ours, term.Columns(os.Stdout))
	return nil
}

func (d *demo) taskPIDs(ctx context.Context) (pids []int, err error) {
	ours, err := d.ours(ctx)
	isTask := map[int]bool{}
	for _, p := range ours { // parents come first
		if strings.HasPrefix(p.Args, "/bin/sh -c "+mark) {
			isTask[p.PID] = true
			if !isTask[p.PPID] { // else a task's child before it executes its program
				pids = append(pids, p.PID)
			}
		}
	}
	if err == nil && len(pids) == 0 {
		err = errors.New("no task is running")
	}
	return pids, err
}

func (d *demo) helpers(ctx context.Context) (plugin, supervisor int, err error) {
	ours, err := d.ours(ctx)
	for _, p := range ours {
		switch {
		case strings.HasPrefix(p.Args, "outrider-supervisor supervise"):
			supervisor = p.PID
		case strings.HasSuffix(p.Args, "nomad-driver-exec-lite"):
			plugin = p.PID
		}
	}
	return plugin, supervisor, err
}

func (d *demo) recovered(ctx context.Context, plugin, supervisor int) error {
	return stage.Until(ctx, "a new plugin and supervisor", func() (bool, error) {
		p, s, err := d.helpers(ctx)
		return p != 0 && p != plugin && s != 0 && s != supervisor, err
	})
}

func (d *demo) gone(ctx context.Context, what string) error {
	return stage.Until(ctx, what+" to end", func() (bool, error) {
		ours, err := d.ours(ctx)
		return !slices.ContainsFunc(ours, func(p forest.Process) bool { return strings.Contains(p.Args, what) }), err
	})
}

// exitCode shows the event of the terminated task and fails if its code is not the wanted
// one. The code may be lost: with the supervisor and the plugin killed, the exit is known only
// if the new supervisor starts before init reaps the task.
func (d *demo) exitCode(ctx context.Context, job string, want int) error {
	return stage.Until(ctx, "the exit code", func() (bool, error) {
		allocs, _, err := d.agent.Client().Jobs().Allocations(job, false, nil)
		if err != nil {
			return false, err
		}
		for _, a := range allocs {
			events := a.TaskStates["task"].Events
			i := slices.IndexFunc(events, func(e *api.TaskEvent) bool { return e.Type == api.TaskTerminated })
			if i < 0 {
				continue
			}
			e := events[i]
			stage.Note("allocation %s: %s: %s", a.ID[:8], e.Type, nomad.Plain(e.DisplayMessage))
			if strings.Contains(e.DisplayMessage, "task is lost") {
				stage.Note("The machine's init reaped it before the new supervisor started. No code is invented.")
			} else if e.ExitCode != want {
				return false, fmt.Errorf("exit code %d was reported, not %d", e.ExitCode, want)
			}
			return true, nil
		}
		return false, nil
	})
}
