// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"

	"github.com/outrider-dev/outrider/lab/agent"
)

// Reload builds a plugin (all, if the name is empty), and restarts the agent and the nodes with it. Tasks keep running.
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
	err = l.restart(ctx, a, names(paths), func() error {
		for _, p := range paths {
			if err := a.ReplacePlugin(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.startNodes(ctx, a)
}

// restart stops the agent unless it has exited, calls change, and starts the agent again. Its tasks keep running.
func (l *Lab) restart(ctx context.Context, a agent.Agent, what string, change func() error) error {
	end := l.step(ctx, "Restarting the agent with %s", what)
	err := a.Stop(ctx)
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
	return l.healthy(ctx, a)
}
