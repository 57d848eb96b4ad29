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
	"flag"
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
	both := flag.Bool("both", false, "also kill plugin and supervisor at the same time")
	stage.Demo{
		Plugins: map[string]string{"exec-lite": `state_dir = "${state_dir}"`},
		Play:    func(ctx context.Context, a agent.Agent) error { return (&demo{agent: a, both: *both}).acts(ctx) },
	}.Main()
}

type demo struct {
	agent agent.Agent
	both  bool       // also kill both at the same time
	job   *stage.Job // with exec-lite
}

func (d *demo) acts(ctx context.Context) error {
	acts := []func(context.Context) error{d.helpersPerTask, d.noHelpers, d.pluginKilled, d.supervisorKilled}
	if d.both {
		acts = append(acts, d.bothKilled)
	}
	return stage.InOrder(ctx, acts...)
}

func (d *demo) helpersPerTask(ctx context.Context) error {
	stage.Say("Three tasks with raw_exec, Nomad's own driver")
	raw, err := d.submit(ctx, "raw_exec", 3)
	if err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	stage.Note("Two helpers for each task: a logmon for its output, an executor to wait for it.")
	return raw.Stop(true)
}

func (d *demo) noHelpers(ctx context.Context) (err error) {
	stage.Say("The same three tasks with exec-lite")
	if err := d.gone(ctx, "nomad executor"); err != nil {
		return err
	}
	if d.job, err = d.submit(ctx, "exec-lite", 3); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	stage.Note("One plugin, one supervisor with its collector, and the tasks. A hundred tasks have the same three.")
	return nil
}

func (d *demo) pluginKilled(ctx context.Context) error {
	stage.Say("kill -9 of the plugin; before the next one starts, the first task exits with code 7")
	return d.kill(ctx, fault{plugin: true, exit: true})
}

func (d *demo) supervisorKilled(ctx context.Context) error {
	stage.Say("kill -9 of the supervisor, the parent of all tasks")
	return d.kill(ctx, fault{supervisor: true})
}

func (d *demo) bothKilled(ctx context.Context) error {
	stage.Say("kill -9 of both, and the first task exits with code 7 while neither runs")
	return d.kill(ctx, fault{plugin: true, supervisor: true, exit: true})
}

// fault is what is killed.
type fault struct {
	plugin, supervisor bool
	exit               bool // the first task exits before there are new ones
}

// kill has the fault happen. The other tasks have to continue.
func (d *demo) kill(ctx context.Context, f fault) error {
	tasks, err := d.taskPIDs(ctx)
	if err != nil {
		return err
	}
	plugin, supervisor, err := d.helpers(ctx)
	if err != nil {
		return err
	}
	command := "kill -9"
	if f.plugin {
		command += fmt.Sprint(" ", plugin)
	}
	if f.supervisor {
		command += fmt.Sprint(" ", supervisor)
	}
	if f.exit {
		command += fmt.Sprint("; kill -TERM ", tasks[0])
		tasks = tasks[1:]
	}
	known, err := d.exits()
	if err != nil {
		return err
	}
	stage.Note("$ %s", command)
	if _, err := d.agent.Exec(ctx, "sh", "-c", command); err != nil {
		return err
	}
	err = stage.Until(ctx, "a new process", func() (bool, error) {
		p, s, err := d.helpers(ctx)
		return p != 0 && s != 0 && (p != plugin) == f.plugin && (s != supervisor) == f.supervisor, err
	})
	if err != nil {
		return err
	}
	if f.exit {
		if err := d.exitCode(ctx, known, 7, f.supervisor); err != nil {
			return err
		}
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	now, err := d.taskPIDs(ctx)
	if err != nil {
		return err
	}
	for _, pid := range tasks {
		if !slices.Contains(now, pid) {
			return fmt.Errorf("task %d did not live on", pid)
		}
	}
	note := "The new plugin found its supervisor again"
	if f.supervisor {
		note = "The new supervisor has adopted the tasks"
	}
	stage.Note("%s. Tasks that continued, with the same pids: %v", note, tasks)
	return nil
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
	forest.Print(os.Stdout, ours, term.Terminal(os.Stdout))
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

func (d *demo) gone(ctx context.Context, what string) error {
	return stage.Until(ctx, what+" to end", func() (bool, error) {
		ours, err := d.ours(ctx)
		return !slices.ContainsFunc(ours, func(p forest.Process) bool { return strings.Contains(p.Args, what) }), err
	})
}

// exits are the events of the tasks that have ended, by allocation.
func (d *demo) exits() (map[string]*api.TaskEvent, error) {
	allocs, _, err := d.agent.Client().Jobs().Allocations(d.job.ID, false, nil)
	if err != nil {
		return nil, err
	}
	ended := map[string]*api.TaskEvent{}
	for _, a := range allocs {
		if a.TaskStates["task"] == nil {
			continue
		}
		for _, e := range a.TaskStates["task"].Events {
			if e.Type == api.TaskTerminated {
				ended[a.ID] = e
			}
		}
	}
	return ended, nil
}

// exitCode shows the event of the task that has ended beside the known ones, and fails if its code is not the wanted
// one. The code may be lost if nobody waited for the task: no plugin and no supervisor ran, and init reaped it.
func (d *demo) exitCode(ctx context.Context, known map[string]*api.TaskEvent, want int, mayBeLost bool) error {
	return stage.Until(ctx, "the exit code", func() (bool, error) {
		now, err := d.exits()
		for id, e := range now {
			if known[id] != nil {
				continue
			}
			stage.Note("allocation %s: %s: %s", id[:8], e.Type, nomad.Plain(e.DisplayMessage))
			switch {
			case mayBeLost && strings.Contains(e.DisplayMessage, "task is lost"):
				stage.Note("The machine's init reaped it before the new supervisor started. No code is invented.")
			case e.ExitCode != want:
				return false, fmt.Errorf("exit code %d was reported, not %d", e.ExitCode, want)
			}
			return true, nil
		}
		return false, err
	})
}
