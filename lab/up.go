// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// Up starts the lab, or updates a running one, and prints its state. It returns when every plugin is healthy. A failed
// start leaves nothing behind.
func (l *Lab) Up(ctx context.Context, with With) error {
	start := time.Now()
	a, err := l.start(ctx, with)
	if err != nil {
		return err
	}
	return l.summary(ctx, a, time.Since(start))
}

// start is Up without the summary.
func (l *Lab) start(ctx context.Context, with With) (agent.Agent, error) {
	if err := l.choose(with); err != nil {
		return nil, err
	}
	a, none := agent.Open(ctx, l.dir)
	o, err := l.prepare(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case errors.Is(none, agent.ErrNone):
		if free(l.port) {
			o.HTTPPort = l.port
		}
		a, err = l.launch(ctx, o)
	case none != nil:
		err = none
	default:
		err = l.update(ctx, a, o)
	}
	if err != nil {
		return nil, err
	}
	if err := l.startHost(ctx, a); err != nil {
		return nil, err
	}
	if err := l.startNodes(ctx, a, o.Plugins); err != nil {
		return nil, err
	}
	return a, l.setStick(ctx, a, with.USB)
}

// prepare finds Nomad, builds the named plugins, or all, and describes the agent to run.
func (l *Lab) prepare(ctx context.Context, which ...string) (agent.Options, error) {
	o := agent.Options{Dir: l.dir, Name: "outrider-lab", Progress: l.steps.Progress}

	end := l.step(ctx, "Choosing the runtime")
	var why string
	var err error
	o.Runtime, why, err = l.chooseRuntime(ctx)
	end(err, "%s, %s", o.Runtime, why)
	if err != nil {
		return o, err
	}

	end = l.step(ctx, "Finding Nomad")
	prog, err := nomad.Binary(ctx, l.steps.Progress)
	end(err, "%s (%s)", prog.Version, prog.Origin)
	if err != nil {
		return o, err
	}
	o.Binary = prog.Path

	paths, err := l.build(ctx, o.Runtime, which...)
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
		o.Config = heartbeats(5*time.Second, 10*time.Second) // a node may be killed to see what becomes of its tasks
	}
	return o, nil
}

// chooseRuntime decides between a container and the host. A lab that is up keeps its runtime.
func (l *Lab) chooseRuntime(ctx context.Context) (r agent.Runtime, why string, err error) {
	r, why = l.runtime, "as asked for"
	if a, err := agent.Open(ctx, l.dir); err == nil && r == auto {
		r, why = a.Info().Runtime, "as before"
	}
	needs := l.needsHost()
	if r == auto && needs != "" {
		r, why = agent.Host, "since "+needs
	}
	switch {
	case r == agent.Container && needs != "":
		return "", "", fmt.Errorf("%s, which a container does not have: %s lab:down, and lab:up -runtime=host", needs, mage)
	case r == agent.Host:
		return r, why, nil
	}
	err = l.docker(ctx)
	switch {
	case err == nil:
		return agent.Container, "from " + agent.Image, nil
	case r == agent.Container:
		return "", "", fmt.Errorf("a container was asked for: %w", err)
	}
	return agent.Host, fmt.Sprintf("since %v", err), nil
}

// launch starts a new agent, on the host if no container can run it, and waits until it is healthy. A failure leaves
// nothing behind.
func (l *Lab) launch(ctx context.Context, o agent.Options) (agent.Agent, error) {
	end := l.step(ctx, "Starting the agent")
	a, err := agent.Start(ctx, o)
	if err != nil {
		end(err, "")
		if o.Runtime != agent.Container || l.runtime != auto || ctx.Err() != nil {
			return nil, err
		}
		l.say("No container can run the agent: %v\nTrying as a host process.", err)
		o.Runtime = agent.Host
		return l.launch(ctx, o)
	}
	end(nil, "%s", a.Address())
	err = l.healthy(ctx, a)
	if err == nil {
		return a, nil
	}
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	end = l.step(cctx, "Removing what was started")
	cerr := a.Close(cctx)
	end(cerr, "")
	return nil, errors.Join(err, cerr)
}

// healthy waits for the plugins.
func (l *Lab) healthy(ctx context.Context, a agent.Agent) error {
	end := l.step(ctx, "Waiting for the plugins")
	_, err := agent.WaitHealthy(ctx, a, l.steps.Progress)
	end(err, "healthy")
	return err
}

// update restarts the agent of an existing lab, or starts one that has ended, with the plugins and the configuration of
// o. If more differs, it returns an error.
func (l *Lab) update(ctx context.Context, a agent.Agent, o agent.Options) error {
	info := a.Info()
	var names []string
	for _, p := range o.Plugins {
		names = append(names, p.Name())
	}
	if info.Runtime != o.Runtime || info.Binary != o.Binary || !slices.Equal(info.Plugins, names) {
		return fmt.Errorf("the lab is up, with another runtime, nomad or set of plugins; to change that:\n\n"+
			"  %s lab:down lab:up", mage)
	}
	if a.Alive(ctx) != nil && !free(info.HTTP) {
		return fmt.Errorf("the lab's agent has ended, and another program has its port %d; to have another:\n\n"+
			"  %s lab:down lab:up", info.HTTP, mage)
	}
	return l.restart(ctx, a, "what was built", func() error { return a.Reconfigure(o) })
}

// free reports whether a loopback port has no listener.
func free(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// summary prints what is up and what to do next.
func (l *Lab) summary(ctx context.Context, a agent.Agent, took time.Duration) error {
	l.say("")
	if err := l.table(ctx, a); err != nil {
		return err
	}
	l.say("\nWeb UI   %s/ui", a.Address())
	l.say("Ready in %s. You can now use it like this:\n", term.Short(took))
	l.hint("%s", l.next(ctx, a))
	l.hint("lab:shell # a shell with nomad on its PATH, and NOMAD_ADDR set")
	if a.Info().Runtime == agent.Host && os.Geteuid() != 0 {
		l.say("\nThe agent is not root: no task as another user, no limits by cgroup, and no isolation by Nomad's exec.")
	}
	return nil
}

// next is the command to suggest to a newcomer.
func (l *Lab) next(ctx context.Context, a agent.Agent) string {
	example := "plugins/exec-lite/example/hello.nomad.hcl"
	switch {
	case exists(l.poolDir()):
		example = "plugins/dataset/example/scratch.nomad.hcl"
	case exists(l.hostDir()):
		example = "plugins/remote/example/counter.nomad.hcl"
	case runs(ctx, a.Client(), simJob):
		example = "plugins/usb/example/serial.nomad.hcl"
	}
	if !exists(filepath.Join(l.root, example)) {
		return "lab:status"
	}
	return "lab:run " + example
}
