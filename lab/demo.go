// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/gobuild"
)

// StartDemo starts an agent in a directory, in addition to any lab that is up, and waits until it is healthy. It has
// the named plugins ("exec-lite") with their configuration; an empty one is that of a lab. It prints each step as a lab
// does. The runtime is as for New, and the simulated stick is the demo's own. EndDemo ends it.
func StartDemo(ctx context.Context, dir, runtime string, plugins map[string]string, with With) (agent.Agent, error) {
	l, err := New(runtime)
	if err != nil {
		return nil, err
	}
	l.dir = dir
	if err := l.choose(with); err != nil {
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
	if l.remote {
		o.Config = heartbeats(3*time.Second, 2*time.Second) // somebody watches
	}
	a, err := l.launch(ctx, o)
	if err != nil {
		return nil, err
	}
	err = l.startHost(ctx, a)
	if err == nil {
		err = l.startNodes(ctx, a, o.Plugins)
	}
	if err != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(err, EndDemo(cctx, a))
	}
	return a, nil
}

// EndDemo stops the jobs of the agent of StartDemo, and removes everything of it.
func EndDemo(ctx context.Context, a agent.Agent) error {
	l := &Lab{dir: a.Info().Dir}
	return errors.Join(l.stopOnNodes(ctx), l.removeNodes(ctx), a.Close(ctx))
}

// PrepareDemos builds the plugins and the demos, and fetches Nomad: the next demo needs no network.
func (l *Lab) PrepareDemos(ctx context.Context) error {
	if _, err := l.prepare(ctx); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "outrider-demos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	end := l.step(ctx, "Compiling the demos")
	demos := gobuild.Build{Dir: l.root, Args: []string{"-o", dir + "/", "./lab/demo/..."}}
	err = demos.Run(ctx)
	end(err, "")
	if err != nil {
		return fmt.Errorf("failed to compile the demos: %w", err)
	}
	l.say("Ready: each demo runs without a network.")
	return nil
}
