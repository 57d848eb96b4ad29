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
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// hostNodes are the nodes that reach the lab's host: a task there can move from one to the other.
var hostNodes = []string{"remote-1", "remote-2"}

// hostNodeConfig keeps all other jobs away from them.
const hostNodeConfig = `client {
  options = {
    "driver.allowlist" = "remote"
  }
}`

// heartbeats is a server's configuration: a node counts as down when it has sent no heartbeat for grace and one to two
// times ttl.
func heartbeats(ttl, grace time.Duration) string {
	return fmt.Sprintf("server {\n  min_heartbeat_ttl = %q\n  heartbeat_grace   = %q\n}", ttl, grace)
}

// nodesDir has a directory for each of the lab's agents besides its own. They are clients of its server.
const nodesDir = "nodes"

// Nodes returns the agents besides the lab's own that were started for a lab in dir, by the names of their nodes. They
// may have ended.
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

// nodeOptions describe the agent of a node. It has the binaries of the lab's agent.
func (l *Lab) nodeOptions(a agent.Agent, name string, plugins []agent.Plugin) (agent.Options, error) {
	o := agent.Options{
		Dir: filepath.Join(l.dir, nodesDir, name), Name: name, Binary: a.Info().Binary, Progress: l.steps.Progress,
		Server: fmt.Sprintf("127.0.0.1:%d", a.Info().RPC),
	}
	if slices.Contains(hostNodes, name) {
		config, err := l.remoteConfig(a)
		if err != nil {
			return o, err
		}
		o.Config = hostNodeConfig
		o.Plugins = []agent.Plugin{{Binary: filepath.Join(a.PluginDir(), remotePlugin), Config: config}}
		return o, nil
	}
	for _, p := range plugins {
		o.Plugins = append(o.Plugins, l.plugin(filepath.Join(a.PluginDir(), p.Name())))
	}
	return o, nil
}

// startNodes starts the nodes that are not there or do not run, and waits until each of them reaches the host, if the
// lab has one.
func (l *Lab) startNodes(ctx context.Context, a agent.Agent, plugins []agent.Plugin) (err error) {
	var names []string
	for i := 2; i <= l.nodes; i++ {
		names = append(names, fmt.Sprintf("node-%d", i))
	}
	if l.remote {
		names = append(names, hostNodes...)
	}
	nodes, err := Nodes(ctx, l.dir)
	if err != nil || len(nodes) == 0 && len(names) == 0 {
		return err
	}
	end := l.step(ctx, "Starting more nodes")
	defer func() { end(err, "%s", joined(slices.Sorted(maps.Keys(nodes)))) }()
	for _, name := range names {
		if nodes[name] != nil {
			continue
		}
		o, err := l.nodeOptions(a, name, plugins)
		if err != nil {
			return err
		}
		nodes[name], err = agent.Start(ctx, o)
		if err != nil {
			return fmt.Errorf("failed to start node %s: %w", name, err)
		}
	}
	if err := l.healthyNodes(ctx, nodes); err != nil || !l.remote {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, name := range hostNodes {
		n := nodes[name]
		err := poll.Until(ctx, 100*time.Millisecond, func() (bool, error) { return reached(ctx, n.Client()), nil })
		if err != nil {
			return fmt.Errorf("node %s does not reach the host: see the output of job %s, and %s lab:shell "+
				"<<<'nomad node status -verbose': %w", name, hostJob, mage, err)
		}
	}
	return nil
}

// updateNodes restarts the nodes that there are with the plugins of the lab's agent. Tasks live on.
func (l *Lab) updateNodes(ctx context.Context, a agent.Agent) error {
	nodes, err := Nodes(ctx, l.dir)
	if err != nil {
		return err
	}
	for name, n := range nodes {
		if err := updateNode(ctx, a, n); err != nil {
			return fmt.Errorf("failed to restart node %s: %w", name, err)
		}
	}
	return l.healthyNodes(ctx, nodes)
}

// healthyNodes starts the nodes that do not run, and waits for their plugins.
func (l *Lab) healthyNodes(ctx context.Context, nodes map[string]agent.Agent) error {
	for name, n := range nodes {
		if err := n.Start(ctx); err != nil {
			return fmt.Errorf("failed to start node %s: %w", name, err)
		}
	}
	for name, n := range nodes {
		if _, err := agent.WaitHealthy(ctx, n, l.steps.Progress); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	return nil
}

func updateNode(ctx context.Context, a, n agent.Agent) error {
	err := n.Stop(ctx)
	for _, p := range n.Info().Plugins {
		err = errors.Join(err, n.ReplacePlugin(ctx, filepath.Join(a.PluginDir(), p)))
	}
	return err
}

// removeNodes removes the nodes, also those whose state is lost. What runs on the host is the lab's own agent's to
// remove.
func (l *Lab) removeNodes(ctx context.Context) error {
	dirs, errs := filepath.Glob(filepath.Join(l.dir, nodesDir, "*"))
	for _, dir := range dirs {
		err := agent.Remove(ctx, dir)
		if err != nil && !errors.Is(err, agent.ErrNone) {
			errs = errors.Join(errs, fmt.Errorf("node %s: %w", filepath.Base(dir), err))
		}
	}
	return errs
}
