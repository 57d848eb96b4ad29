// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command exec-lite shows the processes behind exec-lite's tasks. When these processes are
// killed, the tasks continue and exit codes stay exact. It runs a Nomad agent of its own and
// removes everything at the end: go tool mage demo:exec-lite.
package main

import (
	"context"
	"embed"
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

//go:embed *.hcl
var files embed.FS

func main() {
	both := flag.Bool("both", false, "also kill plugin and supervisor at the same time")
	stage.Demo{
		Plugins: map[string]string{"exec-lite": `state_dir = "${state_dir}"`},
		Play: func(ctx context.Context, a agent.Agent) error {
			d := &demo{&stage.Script{Agent: a, Files: files, Vars: map[string]string{"mark": mark}}}
			acts := d.acts()
			if !*both {
				acts = acts[:len(acts)-1]
			}
			return d.Play(ctx, acts...)
		},
	}.Main()
}

type demo struct{ *stage.Script }

func (d *demo) acts() []stage.Act {
	kill := func(say string, f fault) stage.Act {
		return stage.Act{Say: say, Steps: []stage.Step{{Do: func(ctx context.Context) error { return d.kill(ctx, f) }}}}
	}
	return []stage.Act{
		{Say: "Three tasks with raw_exec, Nomad's own driver", Steps: append(run("raw_exec"), []stage.Step{
			{Do: d.show},
			{Note: "Two helpers for each task: a logmon for its output, an executor to wait for it."},
			{Run: "nomad job stop -purge demo-raw_exec", Quiet: true},
		}...)},
		{Say: "The same three tasks with exec-lite", Steps: append(run("exec-lite"), []stage.Step{
			{Do: d.withoutHelpers},
			{Do: d.show},
			{Note: "One plugin, one supervisor with its collector, and the tasks. A hundred tasks have the same three."},
		}...)},
		kill("kill -9 of the plugin; before the next one starts, the first task exits with code 7",
			fault{plugin: true, exit: true}),
		kill("kill -9 of the supervisor, the parent of all tasks", fault{supervisor: true}),
		kill("kill -9 of both, and the first task exits with code 7 while neither runs",
			fault{plugin: true, supervisor: true, exit: true}),
	}
}

// run runs the job with a driver.
func run(driver string) []stage.Step {
	return []stage.Step{
		{Run: "nomad job run -detach -var driver=" + driver + " demo.nomad.hcl"},
		{Run: "nomad job status demo-" + driver + " | grep -c ' run .* running '", Quiet: true, Expect: "3"},
		{Note: "3 tasks run after {took}"},
	}
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
	stage.Note("$ %s", command)
	start := time.Now()
	if _, err := d.Shell(ctx, command); err != nil {
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
		if err := d.exitCode(ctx, start, f.supervisor); err != nil {
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

// mark is in the arguments of each of this demo's tasks.
var mark = fmt.Sprintf("# demo %d", os.Getpid())

// ours are the agent and its descendants, and the supervisor and the tasks, which may have
// init as their parent.
func (d *demo) ours(ctx context.Context) ([]forest.Process, error) {
	all, err := forest.Read(ctx, d.Agent.Exec)
	if err != nil {
		return nil, err
	}
	pid, err := d.Agent.PID(ctx)
	if err != nil {
		return nil, err
	}
	found := forest.Below(all, pid)
	for _, p := range all {
		supervisor := strings.HasPrefix(p.Args, "outrider-supervisor ") && strings.Contains(p.Args, " "+d.Agent.StateDir())
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

// withoutHelpers waits for the end of those of the job before.
func (d *demo) withoutHelpers(ctx context.Context) error {
	helps := func(p forest.Process) bool { return p.Role() == forest.Helper }
	return stage.Until(ctx, "the helpers to end", func() (bool, error) {
		ours, err := d.ours(ctx)
		return !slices.ContainsFunc(ours, helps), err
	})
}

// exitCode shows the event of the task that has ended since, and fails if its code is not 7. The code may be lost if
// nobody waited for the task: no plugin and no supervisor ran, and init reaped it.
func (d *demo) exitCode(ctx context.Context, since time.Time, mayBeLost bool) error {
	return stage.Until(ctx, "the exit code", func() (bool, error) {
		allocs, _, err := d.Agent.Client().Jobs().Allocations("demo-exec-lite", false, nil)
		for _, a := range allocs {
			e := exit(a, since)
			if e == nil {
				continue
			}
			stage.Note("allocation %s: %s: %s", a.ID[:8], e.Type, nomad.Plain(e.DisplayMessage))
			switch {
			case mayBeLost && strings.Contains(e.DisplayMessage, "task is lost"):
				stage.Note("The machine's init reaped it before the new supervisor started. No code is invented.")
			case e.ExitCode != 7:
				return false, fmt.Errorf("exit code %d was reported, not 7", e.ExitCode)
			}
			return true, nil
		}
		return false, err
	})
}

// exit is the event of an allocation's end since a time, nil if there is none.
func exit(a *api.AllocationListStub, since time.Time) *api.TaskEvent {
	task := a.TaskStates["task"]
	if task == nil {
		return nil
	}
	for _, e := range task.Events {
		if e.Type == api.TaskTerminated && e.Time > since.UnixNano() {
			return e
		}
	}
	return nil
}
