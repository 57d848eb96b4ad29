// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"maps"
	"slices"

	"github.com/outrider-dev/outrider/lab/agent"
)

// StartDemo starts an agent in a directory, in addition to any lab that is up, and waits until it is healthy. It has
// the named plugins ("exec-lite") with their configuration; an empty one is that of a lab. It prints each step as a lab
// does. The runtime is as for New, and the simulated stick is the demo's own.
func StartDemo(ctx context.Context, dir, runtime string, plugins map[string]string, with With) (agent.Agent, error) {
	l, err := New(runtime)
	if err != nil {
		return nil, err
	}
	l.dir = dir
	if l.dataset, err = parseDataset(with.Dataset); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(plugins))
	o, err := l.prepare(ctx, names...)
	if err != nil {
		return nil, err
	}
	o.Name, o.HTTPPort = "demo", 0
	for i, name := range names {
		if plugins[name] != "" {
			o.Plugins[i].Config = plugins[name]
		}
	}
	return l.launch(ctx, o, "")
}
