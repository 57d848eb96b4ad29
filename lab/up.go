// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// Up starts the lab, or restarts a running lab's agent with other options. It waits until every plugin is healthy, and
// prints the lab's state. Tasks keep running. If a new agent fails to start, everything that Up created is removed.
func (l *Lab) Up(ctx context.Context, with With) error {
	start := time.Now()
	a, err := l.start(ctx, with)
	if err != nil {
		return err
	}
	l.say("")
	if err := l.table(ctx, a); err != nil {
		return err
	}
	l.say("\nWeb UI   %s/ui", a.Address())
	l.say("Ready in %s. You can now use the lab like this:\n", term.Short(time.Since(start)))
	l.hint("lab:run plugins/exec-lite/example/hello.nomad.hcl")
	l.hint("lab:shell # a shell with nomad on its PATH, and NOMAD_ADDR set")
	if a.Info().Runtime == agent.Host && os.Geteuid() != 0 {
		l.say("\nThe agent is not root: tasks can't run as other users, have cgroup limits or use Nomad's exec driver.")
	}
	return nil
}

// start is Up without the summary. After an error, it also returns the agent if one runs.
func (l *Lab) start(ctx context.Context, with With) (agent.Agent, error) {
	if err := l.choose(with); err != nil {
		return nil, err
	}
	a, err := agent.Open(ctx, l.dir)
	if err != nil && !errors.Is(err, agent.ErrNone) {
		return nil, err
	}
	o, err := l.prepare(ctx, a)
	switch {
	case err != nil:
		return nil, err
	case a == nil:
		a, err = l.launch(ctx, o)
	default:
		end := l.step(ctx, "Restarting the agent with the new build")
		err = l.restart(ctx, a, func() error { return a.Reconfigure(o) })
		end(err, "%s", a.Address())
	}
	if err == nil {
		err = l.startHost(ctx, a)
	}
	if err == nil {
		err = l.startNodes(ctx, a)
	}
	if err == nil {
		err = l.setStick(ctx, a, with.USB)
	}
	return a, err
}

// prepare finds Nomad, builds the plugins, and returns the options for the agent. up is the existing agent, or nil.
func (l *Lab) prepare(ctx context.Context, up agent.Agent) (agent.Options, error) {
	o := agent.Options{Dir: l.dir, Name: ownNode, Progress: l.steps.Progress}
	end := l.step(ctx, "Choosing the runtime")
	var why string
	var err error
	o.Runtime, why, err = l.chooseRuntime(ctx, up)
	end(err, "%s, %s", o.Runtime, why)
	if err != nil {
		return o, err
	}

	end = l.step(ctx, "Finding Nomad")
	o.Binary, err = nomad.Binary(ctx, l.steps.Progress)
	end(err, "%s", o.Binary)
	if err != nil {
		return o, err
	}

	paths, err := l.build(ctx, o.Runtime, slices.Sorted(maps.Keys(l.only))...)
	if err != nil {
		return o, err
	}
	for _, path := range paths {
		p := l.plugin(path)
		if p.Name() == datasetPlugin && l.dataset {
			if p.HostVolumeFile, err = l.classes(ctx); err != nil {
				return o, err
			}
		}
		o.Plugins = append(o.Plugins, p)
	}
	if l.remote {
		if l.host, err = l.makeHost(ctx); err != nil {
			return o, err
		}
		o.Config = heartbeats // short, since users kill a node to watch its tasks move
	}
	return o, nil
}

// chooseRuntime decides between a container and the host, and returns the reason. A lab that is up keeps its runtime.
func (l *Lab) chooseRuntime(ctx context.Context, up agent.Agent) (r agent.Runtime, why string, err error) {
	r, why = l.runtime, "as requested"
	needs := l.dataset || l.remote || l.nodes > 1 // a container lacks mounts, an SSH server and other agents
	switch {
	case up != nil && (r == auto || r == up.Info().Runtime):
		r, why = up.Info().Runtime, "as before"
	case up != nil:
		return "", "", fmt.Errorf("the lab already uses runtime %s; first stop it with: %s lab:down", up.Info().Runtime, mage)
	case r == auto && needs:
		r, why = agent.Host, "which datasets, SSH hosts and several nodes need"
	case r != agent.Host:
		err := l.docker(ctx)
		switch {
		case err == nil:
			r, why = agent.Container, "from "+agent.Image
		case r == agent.Container:
			return "", "", fmt.Errorf("failed to use a container (LAB_RUNTIME=container): %w", err)
		default:
			r, why = agent.Host, fmt.Sprintf("since %v", err)
		}
	}
	if r == agent.Container && needs {
		return "", "", fmt.Errorf("datasets, SSH hosts and several nodes do not work in a container: run %s lab:down, "+
			"then lab:up with LAB_RUNTIME=host", mage)
	}
	return r, why, nil
}

// launch starts a new agent, and waits until it is healthy. With the runtime auto, it uses the host if the container
// fails. After an error, everything that launch created is removed.
func (l *Lab) launch(ctx context.Context, o agent.Options) (agent.Agent, error) {
	end := l.step(ctx, "Starting the agent")
	if free(l.port) {
		o.HTTPPort = l.port
	}
	a, err := agent.Run(ctx, o)
	if err == nil {
		end(nil, "%s", a.Address())
		return a, nil
	}
	end(err, "")
	if !errors.Is(err, agent.ErrContainer) || l.runtime != auto || ctx.Err() != nil {
		return nil, err
	}
	l.say("Starting the agent as a host process, since %v", err)
	o.Runtime = agent.Host
	return l.launch(ctx, o)
}

// restart stops the agent if it still runs, calls change, starts the agent again, and waits until it is healthy. Tasks
// keep running.
func (l *Lab) restart(ctx context.Context, a agent.Agent, change func() error) error {
	err := a.Stop(ctx)
	if err == nil {
		err = change()
	}
	if err == nil {
		err = a.Start(ctx)
	}
	if err == nil {
		err = agent.WaitHealthy(ctx, a, l.steps.Progress)
	}
	return err
}

// free reports whether no program listens on a loopback port.
func free(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// With selects optional parts of a lab. An empty field adds no part, but a running lab keeps the parts that it has.
type With struct {
	USB     string // "sim": a simulated stick
	Dataset string // "zfs-fuse": a pool in a file
	Remote  string // "sim": an SSH server on this machine, and at least three nodes
	Nodes   int    // number of clients of the lab's server, including the lab's own agent
}

// choose checks the options, and adds the parts that the lab already has, which its directories show. A part stays
// until the lab is removed, because volumes and tasks use it.
func (l *Lab) choose(with With) error {
	l.dataset, l.remote = testsupport.Exists(l.poolDir()), testsupport.Exists(l.hostDir())
	switch {
	case with.USB != "" && with.USB != "sim", with.Dataset != "" && with.Dataset != "zfs-fuse",
		with.Remote != "" && with.Remote != "sim":
		return errors.New("invalid option value: use -usb=sim, -dataset=zfs-fuse or -remote=sim")
	case with.Nodes < 0 || with.Nodes > 9:
		return fmt.Errorf("invalid option -nodes=%d: want 1 to 9", with.Nodes)
	}
	l.dataset = l.dataset || with.Dataset == "zfs-fuse"
	l.remote = l.remote || with.Remote == "sim"
	l.nodes = max(with.Nodes, 1)
	if l.remote {
		l.nodes = max(l.nodes, 3) // only the other nodes reach the host: two or more, so a task can move
	}
	return nil
}
