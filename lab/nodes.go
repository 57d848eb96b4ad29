// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// heartbeats is configuration of a server: a node counts as down if no heartbeat arrives for 10 to 15 s.
const heartbeats = "server {\n  min_heartbeat_ttl = \"5s\"\n  heartbeat_grace   = \"5s\"\n}"

// nodesDir has a directory for each additional agent, which is a client of the lab's own agent.
const nodesDir = "nodes"

// Nodes returns the additional agents of the lab in dir, by node name, including agents that have exited.
func Nodes(ctx context.Context, dir string) (map[string]agent.Agent, error) {
	nodes := map[string]agent.Agent{}
	dirs, err := filepath.Glob(filepath.Join(dir, nodesDir, "*", "agent.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range dirs {
		n, err := agent.Open(ctx, filepath.Dir(file))
		if err != nil {
			return nil, err
		}
		nodes[filepath.Base(filepath.Dir(file))] = n
	}
	return nodes, nil
}

// startNodes starts missing nodes and restarts existing ones, with the plugins of a, the lab's own agent. Tasks keep
// running. It waits until each node is healthy and, if the lab has an SSH host, reaches the host.
func (l *Lab) startNodes(ctx context.Context, a agent.Agent) (err error) {
	nodes, err := Nodes(ctx, l.dir)
	if err != nil {
		return err
	}
	names := slices.Collect(maps.Keys(nodes))
	for i := 2; i <= l.nodes; i++ {
		names = append(names, fmt.Sprintf("node-%d", i))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return nil
	}
	end := l.step(ctx, "Starting more nodes")
	defer func() { end(err, "%s", joined(names)) }()
	errs := make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { errs[i] = l.startNode(ctx, a, name, nodes[name]) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// startNode starts the node, or restarts it if n is not nil, with the binaries of a, the lab's own agent.
func (l *Lab) startNode(ctx context.Context, a agent.Agent, name string, n agent.Agent) error {
	o := agent.Options{
		Runtime: agent.Host, Dir: filepath.Join(l.dir, nodesDir, name), Name: name, Binary: a.Info().Binary,
		Progress: l.steps.Progress, Server: fmt.Sprintf("127.0.0.1:%d", a.Info().RPC),
	}
	for _, plugin := range a.Info().Plugins {
		p := l.plugin(filepath.Join(a.PluginDir(), plugin))
		if plugin == remotePlugin && l.remote {
			config, err := l.remoteConfig(a)
			if err != nil {
				return err
			}
			p.Config = config
		}
		o.Plugins = append(o.Plugins, p)
	}
	var err error
	if n == nil {
		n, err = agent.Run(ctx, o)
	} else {
		err = l.restart(ctx, n, func() error { return n.Reconfigure(o) })
	}
	if err != nil {
		return fmt.Errorf("failed to start node %s: %w", name, err)
	}
	if !l.remote {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = poll.Until(ctx, 100*time.Millisecond, func() (bool, error) { return reached(ctx, n), nil })
	if err != nil {
		return fmt.Errorf("node %s does not reach the SSH host: %w; see the output of job %s", name, err, hostJob)
	}
	return nil
}

// removeNodes removes the additional nodes, even if their state is lost. Their processes on the SSH host keep running
// until the lab's own agent is removed.
func (l *Lab) removeNodes(ctx context.Context) error {
	dirs, errs := filepath.Glob(filepath.Join(l.dir, nodesDir, "*"))
	for _, dir := range dirs {
		err := agent.Remove(ctx, dir)
		if err != nil && !errors.Is(err, agent.ErrNone) {
			errs = errors.Join(errs, fmt.Errorf("failed to remove node %s: %w", filepath.Base(dir), err))
		}
	}
	return errs
}
