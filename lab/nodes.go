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
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// hostNodes are the nodes that reach the lab's host: a task there can move from one to the other. Each is an agent that
// is a client of the lab's own, in a directory of this name below the lab's.
var hostNodes = []string{"remote-1", "remote-2"}

// nodeConfig keeps all other jobs on the lab's own node.
const nodeConfig = `client {
  options = {
    "driver.allowlist" = "remote"
  }
}`

// heartbeats is a server's configuration: a node counts as down when it has sent no heartbeat for grace and one to two
// times ttl.
func heartbeats(ttl, grace time.Duration) string {
	return fmt.Sprintf("server {\n  min_heartbeat_ttl = %q\n  heartbeat_grace   = %q\n}", ttl, grace)
}

// Nodes returns the nodes besides the lab's own that were started for a lab in dir, by name. A node may have ended.
func Nodes(ctx context.Context, dir string) (map[string]agent.Agent, error) {
	nodes := map[string]agent.Agent{}
	for _, name := range hostNodes {
		n, err := agent.Open(ctx, filepath.Join(dir, name))
		if errors.Is(err, agent.ErrNone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		nodes[name] = n
	}
	return nodes, nil
}

// startNodes starts the nodes that are not there or do not run, and waits until each of them reaches the host.
func (l *Lab) startNodes(ctx context.Context, a agent.Agent) (err error) {
	end := l.step(ctx, "Starting the nodes that reach it")
	defer func() { end(err, "%s", joined(hostNodes)) }()
	config, err := l.remoteConfig(a)
	if err != nil {
		return err
	}
	before, err := Nodes(ctx, l.dir)
	if err != nil {
		return err
	}
	for _, name := range hostNodes {
		if before[name] != nil {
			continue
		}
		_, err := agent.Start(ctx, agent.Options{
			Dir: filepath.Join(l.dir, name), Name: name, Binary: a.Info().Binary, Config: nodeConfig,
			Server:   fmt.Sprintf("127.0.0.1:%d", a.Info().RPC),
			Plugins:  []agent.Plugin{{Binary: filepath.Join(a.PluginDir(), remotePlugin), Config: config}},
			Progress: l.steps.Progress,
		})
		if err != nil {
			return fmt.Errorf("failed to start node %s: %w", name, err)
		}
	}
	if err := l.updateNodes(ctx, a); err != nil {
		return err
	}
	nodes, err := Nodes(ctx, l.dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for name, n := range nodes {
		err := poll.Until(ctx, 100*time.Millisecond, func() (bool, error) { return reached(ctx, n.Client()), nil })
		if err != nil {
			return fmt.Errorf("node %s does not reach the host: see the output of job %s, and the message of the driver in %s "+
				"lab:status: %w", name, hostJob, mage, err)
		}
	}
	return nil
}

// updateNodes gives the nodes that there are the plugin of the lab's agent, and starts those that do not run. Tasks
// live on.
func (l *Lab) updateNodes(ctx context.Context, a agent.Agent) error {
	nodes, err := Nodes(ctx, l.dir)
	if err != nil {
		return err
	}
	for name, n := range nodes {
		if n.Info().Sums[remotePlugin] != a.Info().Sums[remotePlugin] {
			err = errors.Join(n.Stop(ctx), n.ReplacePlugin(ctx, filepath.Join(a.PluginDir(), remotePlugin)))
		}
		if err == nil {
			err = n.Start(ctx)
		}
		if err != nil {
			return fmt.Errorf("failed to start node %s: %w", name, err)
		}
	}
	for name, n := range nodes {
		if _, err := agent.WaitHealthy(ctx, n, Missing(l.steps)); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	return nil
}

// removeNodes removes the nodes. What runs on the host is the lab's own agent's to remove.
func (l *Lab) removeNodes(ctx context.Context) error {
	var errs []error
	for _, name := range hostNodes {
		err := agent.Remove(ctx, filepath.Join(l.dir, name))
		if err != nil && !errors.Is(err, agent.ErrNone) {
			errs = append(errs, fmt.Errorf("node %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// nodeDrivers is the remote driver of each node.
func (l *Lab) nodeDrivers(ctx context.Context) (drivers []nomad.Driver, err error) {
	nodes, err := Nodes(ctx, l.dir)
	for _, name := range hostNodes {
		if nodes[name] == nil {
			continue
		}
		d := nomad.Driver{Description: "its agent has ended: lab:up starts it again"}
		if found, _ := nomad.Health(ctx, nodes[name].Client(), remoteDriver); len(found) == 1 {
			d = found[0]
			all := append([]string{d.Description}, endpoints(d)...)
			d.Description = strings.TrimPrefix(strings.Join(all, "; "), "; ") // which is empty before the first look
		}
		d.Name = remoteDriver + " on " + name
		drivers = append(drivers, d)
	}
	return drivers, err
}

// endpoints describes the hosts that a remote driver reaches.
func endpoints(d nomad.Driver) (all []string) {
	for _, attribute := range slices.Sorted(maps.Keys(d.Attributes)) {
		prefix, ok := strings.CutSuffix(attribute, ".healthy")
		if !ok {
			continue
		}
		about := "unhealthy"
		if healthy, _ := strconv.ParseBool(d.Attributes[attribute]); healthy {
			about = fmt.Sprintf("healthy, %s, cgroup %s, root %s", d.Attributes[prefix+".arch"],
				d.Attributes[prefix+".cgroup"], d.Attributes[prefix+".root"])
		}
		all = append(all, strings.TrimPrefix(prefix, "endpoint.")+": "+about)
	}
	return all
}

// nodeTable prints the nodes.
func (l *Lab) nodeTable(ctx context.Context, a agent.Agent) error {
	nodes, _, err := a.Client().Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("failed to list nodes: %w", err)
	}
	rows := [][]string{{"NODE", "ID", "STATUS", "ELIGIBILITY"}}
	for _, n := range nodes {
		rows = append(rows, []string{n.Name, fmt.Sprintf("%.8s", n.ID), n.Status, n.SchedulingEligibility})
	}
	l.say("")
	return term.Table(l.out, rows...)
}
