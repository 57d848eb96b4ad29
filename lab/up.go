// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// Up starts the lab, or updates a running one, and prints its state. It returns when every plugin is healthy. A failed
// start leaves nothing behind.
//
// With selects the devices; what is empty stays as it is in the running lab, and is none in a new one.
func (l *Lab) Up(ctx context.Context, with With) error {
	start := time.Now()
	a, err := l.start(ctx, with)
	if err != nil {
		return err
	}
	return l.summary(ctx, a, time.Since(start))
}

// With is what a lab has besides the plugins.
type With struct {
	USB     string // "none", or "sim" for a simulated stick
	Dataset string // "none", or "zfs-fuse" for a pool in a file
	Remote  string // "none", or "sim" for an SSH server on this machine
}

// start is Up without the summary.
func (l *Lab) start(ctx context.Context, with With) (agent.Agent, error) {
	var err error
	if l.usb, err = parseUSB(with.USB); err != nil {
		return nil, err
	}
	l.usb = l.usb.chosen(ctx, l.dir)
	if l.dataset, err = parseDataset(with.Dataset); err != nil {
		return nil, err
	}
	if l.dataset, err = l.dataset.chosen(ctx, l.dir); err != nil {
		return nil, err
	}
	if l.remote, err = parseRemote(with.Remote); err != nil {
		return nil, err
	}
	if l.remote, err = l.remote.chosen(ctx, l.dir); err != nil {
		return nil, err
	}
	if _, err := agent.Open(ctx, l.dir); errors.Is(err, agent.ErrNone) && l.port != 0 && !free(l.port) {
		return nil, fmt.Errorf("port %d, which LAB_PORT names, is taken by another program: "+
			"name another, or none for any that is free", l.port)
	}
	o, err := l.prepare(ctx)
	if err != nil {
		return nil, err
	}
	a, err := agent.Open(ctx, l.dir)
	switch {
	case errors.Is(err, agent.ErrNone):
		a, err = l.create(ctx, o)
	case err == nil:
		a, err = l.update(ctx, a, o)
	}
	if err != nil {
		return nil, err
	}
	if err := l.startHost(ctx, a); err != nil {
		return nil, err
	}
	if l.usb == usbSim {
		return a, l.plug(ctx, a)
	}
	return a, l.unplug(ctx, a)
}

// prepare finds Nomad, builds the named plugins, or all, and describes the agent to run.
func (l *Lab) prepare(ctx context.Context, which ...string) (agent.Options, error) {
	o := agent.Options{Dir: l.dir, Name: "outrider-lab", HTTPPort: l.port, Progress: l.steps.Progress}

	end := l.step(ctx, "Choosing the runtime")
	var why string
	var err error
	o.Runtime, o.Image, why, err = l.choose(ctx)
	if err == nil && o.Runtime == agent.Container && l.dataset.inFile() {
		err = fmt.Errorf("a container has no file systems to make and mount, which datasets need: %s lab:down lab:up "+
			"-runtime=host -dataset=%s", mage, l.dataset)
	}
	if err == nil && o.Runtime == agent.Container && l.remote == remoteSim {
		err = fmt.Errorf("a container has no SSH server, which the host needs: %s lab:down lab:up -runtime=host "+
			"-remote=sim", mage)
	}
	end(err, "%s", why)
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
		if p.Name() == datasetPlugin {
			if p.HostVolumeFile, err = l.classes(ctx); err != nil {
				return o, err
			}
			if l.dataset.inFile() {
				o.Pool = l.poolDir()
			}
		}
		o.Plugins = append(o.Plugins, p)
	}
	if l.remote == remoteSim {
		if l.host, err = l.makeHost(ctx); err != nil {
			return o, err
		}
		o.Config = heartbeats(5*time.Second, 10*time.Second) // a node may be killed to see what becomes of its tasks
	}
	o.Labels = map[string]string{
		usbLabel: string(l.usb), datasetLabel: string(l.dataset), remoteLabel: string(l.remote),
		portLabel: strconv.Itoa(l.host.Port), configLabel: configs(o),
	}
	return o, nil
}

// choose decides between a container, for which it finds the image, and the host. A lab that is up keeps its runtime.
func (l *Lab) choose(ctx context.Context) (r agent.Runtime, img, why string, err error) {
	if a, err := agent.Open(ctx, l.dir); err == nil && (l.runtime == auto || l.runtime == a.Info().Runtime) {
		return a.Info().Runtime, cmp.Or(l.ref, a.Info().Image), fmt.Sprintf("%s, as before", a.Info().Runtime), nil
	}
	host := "host process"
	if os.Geteuid() != 0 {
		host += ", not as root"
	}
	if l.runtime == agent.Host {
		return agent.Host, "", host, nil
	}
	if l.dataset.inFile() && l.runtime == auto {
		return agent.Host, "", host + ", which datasets need", nil
	}
	if l.remote == remoteSim && l.runtime == auto {
		return agent.Host, "", host + ", which the SSH server needs", nil
	}
	because := "Docker does not answer"
	if err = l.docker(ctx); err == nil {
		img, err = l.image(ctx, l.ref, l.steps.Progress)
		because = fmt.Sprint(err)
	}
	switch {
	case err == nil:
		return agent.Container, img, "container from " + img, nil
	case l.runtime == agent.Container:
		return "", "", "", fmt.Errorf("a container was asked for: %w", err)
	default:
		return agent.Host, "", host + ", since " + because, nil
	}
}

// create starts a new lab.
func (l *Lab) create(ctx context.Context, o agent.Options) (agent.Agent, error) {
	instead := ""
	switch {
	case o.HTTPPort == 0 && free(defaultPort):
		o.HTTPPort = defaultPort
	case o.HTTPPort == 0:
		instead = fmt.Sprintf(", since another program has Nomad's usual port %d", defaultPort)
	}
	return l.launch(ctx, o, instead)
}

// launch starts a new agent, on the host if no container can run it, and waits until it is healthy.
func (l *Lab) launch(ctx context.Context, o agent.Options, note string) (agent.Agent, error) {
	end := l.step(ctx, "Starting the agent")
	a, err := agent.Start(ctx, o)
	switch {
	case err == nil:
		end(nil, "%s%s%s", a.Address(), note, mode(a.Info()))
		return l.healthy(ctx, a, true)
	case o.Runtime != agent.Container || l.runtime != auto || ctx.Err() != nil:
		end(err, "")
		return nil, err
	}
	end(err, "")
	l.say("No container can run the agent: %v\nTrying as a host process.", err)
	o.Runtime = agent.Host
	return l.launch(ctx, o, note)
}

// mode describes how a container got its rights.
func mode(i agent.Info) string {
	switch i.Mode {
	case "":
		return ""
	case "capabilities":
		return ", in a container with a set of capabilities, since a privileged one is refused here"
	default:
		return ", in a " + i.Mode + " container"
	}
}

// healthy waits for the plugins; on failure it removes the lab if it is new.
func (l *Lab) healthy(ctx context.Context, a agent.Agent, isNew bool) (agent.Agent, error) {
	end := l.step(ctx, "Waiting for the plugins")
	_, err := agent.WaitHealthy(ctx, a, Missing(l.steps))
	end(err, "healthy")
	if err == nil || !isNew {
		return a, err
	}
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	end = l.step(cctx, "Removing what was started")
	cerr := a.Close(cctx)
	end(cerr, "")
	return nil, errors.Join(err, cerr)
}

// Missing shows what an agent waits for. It prints a driver's own message at once, since it may not change, and
// anything else only if the step takes long.
func Missing(steps *term.Printer) func(error) {
	return func(err error) {
		var unhealthy *nomad.NotHealthyError
		if errors.As(err, &unhealthy) && slices.ContainsFunc(unhealthy.Drivers, explained) {
			steps.Println("       %v", err)
		}
		steps.Status("%v", err)
	}
}

// explained reports whether a driver has a message of its own.
func explained(d nomad.Driver) bool { return d.Description != "" }

// update changes an existing lab to match o. It starts an agent that has ended, and restarts one with new plugins or
// plugin configurations. If more differs, it returns an error.
func (l *Lab) update(ctx context.Context, a agent.Agent, o agent.Options) (agent.Agent, error) {
	info := a.Info()
	var names []string
	for _, p := range o.Plugins {
		names = append(names, p.Name())
	}
	same := info.Runtime == o.Runtime && info.Image == o.Image && info.Binary == o.Binary
	if !same || !slices.Equal(info.Plugins, names) {
		return nil, fmt.Errorf("the lab is up, with another runtime, image, nomad or set of plugins; to change that:\n\n"+
			"  %s lab:down lab:up", mage)
	}
	changed, err := l.changed(info, o)
	if err != nil {
		return nil, err
	}
	c := change{plugins: changed}
	if info.Labels[configLabel] != o.Labels[configLabel] {
		c.options, c.flags = &o, flags(info.Labels, o.Labels)
	}
	if a.Alive(ctx) == nil {
		if c.none() {
			l.say("The lab is up already, and its plugins are as built.")
			return l.healthy(ctx, a, false)
		}
		if err := l.unplug(ctx, a); err != nil {
			return nil, err
		}
		return a, l.restart(ctx, a, c)
	}
	if !free(info.HTTP) {
		return nil, fmt.Errorf("the lab's agent has ended, and another program has its port %d; to have another:\n\n"+
			"  %s lab:down lab:up", info.HTTP, mage)
	}
	end := l.step(ctx, "Starting the agent again")
	if err = c.apply(ctx, a); err == nil {
		err = a.Start(ctx)
	}
	end(err, "%s", a.Address())
	if err != nil {
		return nil, err
	}
	return l.healthy(ctx, a, false)
}

// changed lists the plugins whose binary differs from what the agent has.
func (l *Lab) changed(info agent.Info, o agent.Options) ([]string, error) {
	var paths []string
	for _, p := range o.Plugins {
		sum, err := agent.Sum(p.Binary)
		if err != nil {
			return nil, err
		}
		if info.Sums[p.Name()] != sum {
			paths = append(paths, p.Binary)
		}
	}
	return paths, nil
}

// configLabel is the agent's label for the result of configs.
const configLabel = "plugin_configs"

// configs is a hash of the agent's and the plugins' configurations, and of the files of host volume plugins.
func configs(o agent.Options) string {
	h := sha256.New()
	fmt.Fprintln(h, o.Config)
	for _, p := range o.Plugins {
		fmt.Fprintln(h, p.Name(), p.Config, p.HostVolumeFile)
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:16]
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
	l.hint("%s", l.next(a.Info()))
	l.hint("lab:shell # a shell with nomad on its PATH, and NOMAD_ADDR set")
	if l.usb == usbSim {
		l.say("\nThe stick is plugged in while job %s runs. Pull it out, and plug it in again, with:\n", simJob)
		l.hint("lab:stop %s", simJob)
		l.hint("lab:up")
	}
	if l.remote == remoteSim {
		l.say("\nThat job has its task on host %s, which is there while job %s runs. Take it away, and bring it back, "+
			"with:\n", endpoint, hostJob)
		l.hint("lab:stop %s", hostJob)
		l.hint("lab:up")
	}
	if l.dataset.inFile() {
		l.say("\nThat job has scratch of class fast. A volume, and a job that has it:\n")
		l.hint("%s", createVolume(datasetExamples+"notes.volume.hcl"))
		l.hint("lab:run %s", datasetExamples+"volume.nomad.hcl")
	}
	if a.Info().Runtime == agent.Host && a.Info().NotRoot {
		l.say("\nThe agent is not root: no task as another user, no limits by cgroup, and no isolation by Nomad's exec.")
	}
	return nil
}

const datasetExamples = "plugins/dataset/example/"

// next is the command to suggest to a newcomer.
func (l *Lab) next(i agent.Info) string {
	example := "plugins/exec-lite/example/hello.nomad.hcl"
	if i.Labels[usbLabel] == string(usbSim) {
		example = "plugins/usb/example/serial.nomad.hcl"
	}
	if remote(i.Labels[remoteLabel]) == remoteSim {
		example = "plugins/remote/example/counter.nomad.hcl"
	}
	if dataset(i.Labels[datasetLabel]).inFile() {
		example = datasetExamples + "scratch.nomad.hcl"
	}
	if _, err := os.Stat(filepath.Join(l.root, example)); err != nil {
		return "lab:status"
	}
	return "lab:run " + example
}
