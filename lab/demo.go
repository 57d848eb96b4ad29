// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
)

// StartDemo starts an agent in a directory, in addition to any lab that is up, and waits until it is healthy. It has
// the named plugins ("exec-lite") with their configuration; an empty one is that of a lab. It prints each step as a lab
// does. The runtime is as for New, and the simulated stick is the demo's own.
func StartDemo(ctx context.Context, dir, runtime string, plugins map[string]string, with With) (*Demo, error) {
	l, err := New(runtime)
	if err != nil {
		return nil, err
	}
	l.dir = dir
	if l.dataset, err = parseDataset(with.Dataset); err != nil {
		return nil, err
	}
	if l.remote, err = parseRemote(with.Remote); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(plugins))
	o, err := l.prepare(ctx, names...)
	if err != nil {
		return nil, err
	}
	o.Name, o.HTTPPort = "demo", 0
	if l.remote == remoteSim {
		o.Name = "node1"
	}
	for i, name := range names {
		if plugins[name] != "" {
			o.Plugins[i].Config = plugins[name]
		}
	}
	a, err := l.launch(ctx, o, "")
	if err != nil {
		return nil, err
	}
	d := &Demo{Agent: a, lab: l}
	if err = l.join(ctx, a, o); err == nil {
		d.Nodes, err = l.nodes(ctx)
	}
	if err == nil {
		return d, nil
	}
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return nil, errors.Join(err, d.Close(cctx))
}

// Demo is what StartDemo has started.
type Demo struct {
	Agent agent.Agent
	Nodes []agent.Agent // the others, with With.Remote

	lab *Lab
}

// Close ends and removes all of it.
func (d *Demo) Close(ctx context.Context) error {
	return errors.Join(d.lab.removeNodes(ctx), d.Agent.Close(ctx))
}
