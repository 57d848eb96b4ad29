// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
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
	end := l.step(ctx, "Restarting the agent with %s", names(paths))
	err = l.restart(ctx, a, func() error {
		for _, p := range paths {
			if err := a.ReplacePlugin(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
	end(err, "%s", a.Address())
	if err != nil {
		return err
	}
	return l.startNodes(ctx, a)
}
