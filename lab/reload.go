// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Reload builds a plugin (or all, if the name is empty), restarts the agent with it, and reports which running tasks
// lived on. It fails if one did not.
func (l *Lab) Reload(ctx context.Context, plugin string) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	var which []string
	if plugin != "" {
		which = []string{plugin}
	}
	paths, err := l.build(ctx, a.Info().Runtime, which...)
	if err != nil {
		return err
	}
	return l.restart(ctx, a, names(paths), func() error {
		for _, p := range paths {
			if err := a.ReplacePlugin(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// restart restarts the agent with a change, which is made while it is down, while its tasks run on.
func (l *Lab) restart(ctx context.Context, a agent.Agent, what string, change func() error) error {
	before, err := tasks(ctx, a.Client())
	if err != nil {
		return err
	}
	end := l.step(ctx, "Restarting the agent with %s", what)
	err = a.Stop(ctx)
	if err == nil {
		err = change()
	}
	if err == nil {
		err = a.Start(ctx)
	}
	end(err, "")
	if err != nil {
		return err
	}
	if err := l.healthy(ctx, a); err != nil {
		return err
	}
	if err := l.updateNodes(ctx, a); err != nil {
		return err
	}
	if len(before) == 0 {
		l.say("No task was running.")
		return nil
	}
	return l.survivors(ctx, a, before)
}

// task is a running task as the servers know it.
type task struct {
	*api.TaskState
	job, alloc, name string
}

// same reports whether it is still the same run of the task.
func (t task) same(o task) bool { return t.StartedAt.Equal(o.StartedAt) && t.Restarts == o.Restarts }

// tasks returns the running tasks, by allocation and name.
func tasks(ctx context.Context, c *api.Client) (map[string]task, error) {
	q := (&api.QueryOptions{Namespace: "*"}).WithContext(ctx)
	list, _, err := c.Allocations().List(q)
	if err != nil {
		return nil, fmt.Errorf("failed to list allocations: %w", err)
	}
	found := map[string]task{}
	for _, a := range list {
		for name, s := range a.TaskStates {
			if s.State == "running" {
				found[a.ID+"/"+name] = task{s, a.JobID, a.ID, name}
			}
		}
	}
	return found, nil
}

// survivors compares the tasks from before a restart with the current ones. The
// client reports a task that ended to its servers within about a second.
func (l *Lab) survivors(ctx context.Context, a agent.Agent, before map[string]task) error {
	if err := poll.Sleep(ctx, time.Second); err != nil {
		return err
	}
	now, err := tasks(ctx, a.Client())
	if err != nil {
		return err
	}
	table, lost := compare(before, now)
	l.say("")
	if err := term.Table(l.out, table...); err != nil {
		return err
	}
	text, err := sum(len(before), lost)
	if err == nil {
		l.say("\n%s", text)
	}
	return err
}

// sum is a restart in one sentence.
func sum(tasks, lost int) (text string, err error) {
	switch {
	case lost > 0 && tasks == 1:
		return "", errors.New("the running task did not live through the restart")
	case lost > 0:
		return "", fmt.Errorf("%d of %d running tasks did not live through the restart", lost, tasks)
	case tasks == 1:
		return "The running task lived on.", nil
	}
	return fmt.Sprintf("All %d running tasks lived on.", tasks), nil
}

// compare lists what became of each task that ran before, and counts those that did not live on.
func compare(before, now map[string]task) (rows [][]string, lost int) {
	rows = [][]string{{"JOB", "TASK", "ALLOCATION", "AFTER THE RESTART"}}
	for _, k := range slices.Sorted(maps.Keys(before)) {
		b := before[k]
		n, runs := now[k]
		verdict := "lived on"
		switch {
		case !runs:
			verdict = "ended"
			lost++
		case !b.same(n):
			verdict = "was started again"
			lost++
		}
		rows = append(rows, []string{b.job, b.name, fmt.Sprintf("%.8s", b.alloc), verdict})
	}
	return rows, lost
}
