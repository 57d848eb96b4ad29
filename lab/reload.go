// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
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
	text, err := compare(before, now)
	if err == nil {
		l.say("%s", text)
	}
	return err
}

// compare is a restart in one sentence, or an error with what became of the tasks that did not live on.
func compare(before, now map[string]task) (text string, err error) {
	var lost []string
	for _, k := range slices.Sorted(maps.Keys(before)) {
		b := before[k]
		n, runs := now[k]
		switch {
		case !runs:
			lost = append(lost, fmt.Sprintf("task %s of job %s (%.8s) has ended", b.name, b.job, b.alloc))
		case !b.same(n):
			lost = append(lost, fmt.Sprintf("task %s of job %s (%.8s) was started again", b.name, b.job, b.alloc))
		}
	}
	switch {
	case len(lost) > 0:
		return "", fmt.Errorf("%d of %d running tasks did not live through the restart: %s", len(lost), len(before),
			joined(lost))
	case len(before) == 1:
		return "The running task lived on.", nil
	}
	return fmt.Sprintf("All %d running tasks lived on.", len(before)), nil
}
