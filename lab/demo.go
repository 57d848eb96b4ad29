// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/gobuild"
)

// StartDemo starts a lab in dir, even if another lab is up, and waits until it is healthy. plugins has the
// configuration of each plugin by its name ("exec-lite"); an empty one means the lab's. If onHost is set, the agent
// runs on this machine, even if LAB_RUNTIME is container. Remove the lab with EndDemo.
func StartDemo(ctx context.Context, dir string, onHost bool, plugins map[string]string, w With) (agent.Agent, error) {
	l, err := New()
	if err != nil {
		return nil, err
	}
	l.dir, l.port, l.only = dir, 0, plugins
	if onHost {
		l.runtime = agent.Host
	}
	a, err := l.start(ctx, w)
	if err != nil && a != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, EndDemo(cctx, a))
	}
	return a, err
}

// EndDemo stops the jobs of an agent that StartDemo returned, and removes the agent and its files.
func EndDemo(ctx context.Context, a agent.Agent) error {
	l := &Lab{dir: a.Info().Dir}
	return errors.Join(l.stopOnNodes(ctx), l.removeNodes(ctx), a.Close(ctx))
}

// PrepareDemos builds the plugins and the demos, and fetches Nomad, so demos need no network from then on.
func (l *Lab) PrepareDemos(ctx context.Context) error {
	if _, err := l.prepare(ctx, nil); err != nil {
		return err
	}
	end := l.step(ctx, "Compiling the demos")
	err := gobuild.Build{Dir: l.root, Args: []string{"./lab/demo/..."}}.Run(ctx) // only to fill Go's build cache
	end(err, "")
	if err != nil {
		return fmt.Errorf("failed to compile the demos: %w", err)
	}
	l.say("Ready: each demo runs without a network.")
	return nil
}
