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

// restart restarts the agent, or starts one that has ended, with a change, which is made while it is down, while its
// tasks run on.
func (l *Lab) restart(ctx context.Context, a agent.Agent, what string, change func() error) error {
	var before map[string]time.Time
	var err error
	alive := a.Alive(ctx) == nil
	if alive {
		if before, err = tasks(ctx, a.Client()); err != nil {
			return err
		}
	}
	end := l.step(ctx, "Restarting the agent with %s", what)
	if alive {
		err = a.Stop(ctx)
	}
	if err == nil {
		err = change()
	}
	if err == nil {
		err = a.Start(ctx)
	}
	end(err, "%s", a.Address())
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
		return nil
	}
	// the client reports a task that ended to its servers within about a second
	if err := poll.Sleep(ctx, time.Second); err != nil {
		return err
	}
	now, err := tasks(ctx, a.Client())
	if err != nil {
		return err
	}
	if lost := changed(before, now); len(lost) > 0 {
		return fmt.Errorf("%d of %d running tasks have ended or were started again: %s", len(lost), len(before),
			joined(lost))
	}
	l.say("All running tasks lived on (%d).", len(before))
	return nil
}

// tasks returns when the running tasks were started, by a text for people that names one task.
func tasks(ctx context.Context, c *api.Client) (map[string]time.Time, error) {
	list, _, err := c.Allocations().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("failed to list allocations: %w", err)
	}
	found := map[string]time.Time{}
	for _, a := range list {
		for name, s := range a.TaskStates {
			if s.State == "running" {
				found[fmt.Sprintf("task %s of job %s (%s)", name, a.JobID, a.ID)] = s.StartedAt
			}
		}
	}
	return found, nil
}

// changed returns the tasks from before that do not run any more, or run since another time.
func changed(before, now map[string]time.Time) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if !now[name].Equal(before[name]) {
			names = append(names, name)
		}
	}
	return names
}
