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
// the named plugins ("exec-lite") with their configuration. It prints each step as a lab does. The runtime is as for
// New.
func StartDemo(ctx context.Context, dir, runtime string, plugins map[string]string) (agent.Agent, error) {
	l, err := New(runtime)
	if err != nil {
		return nil, err
	}
	l.dir = dir
	names := slices.Sorted(maps.Keys(plugins))
	o, err := l.prepare(ctx, names...)
	if err != nil {
		return nil, err
	}
	o.Name, o.HTTPPort = "demo", 0
	for i, name := range names {
		o.Plugins[i].Config = plugins[name]
	}
	return l.launch(ctx, o, "")
}
