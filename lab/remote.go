// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/remotehost"
)

const (
	remotePlugin = agent.DriverPrefix + "remote"
	remoteLabel  = "remote" // of the agent: whether it was started with a remote host

	remoteHost   = "box"    // the endpoint that is the simulated host
	remoteEngine = "engine" // the endpoint that is this machine's Docker or Podman
)

// remote selects whether tasks can run on a simulated host, and the lab has three nodes. It is a flag's value, empty to
// keep the current choice.
type remote string

const (
	remoteAsBefore remote = ""
	remoteNone     remote = "false"
	remoteSim      remote = "true"
)

// parseRemote reads the value of a flag.
func parseRemote(s string) (remote, error) {
	switch r := remote(s); r {
	case remoteAsBefore, remoteNone, remoteSim:
		return r, nil
	}
	return "", fmt.Errorf("-remote=%s: want true (a simulated host, and two more nodes) or false", s)
}

// chosen is r, or what the running lab was started with if r is empty. It can't be changed while the lab is up, since
// a server reads its heartbeat settings only when it starts.
func (r remote) chosen(ctx context.Context, dir string) (remote, error) {
	a, err := agent.Open(ctx, dir)
	if err != nil {
		return cmp.Or(r, remoteNone), nil
	}
	was := cmp.Or(remote(a.Info().Labels[remoteLabel]), remoteNone)
	if r != remoteAsBefore && r != was {
		return "", fmt.Errorf("the lab is up, but with -remote=%s; to change that:\n\n  %s lab:down lab:up -remote=%s", was,
			mage, r)
	}
	return was, nil
}

// remoteConfig is the configuration of the plugin on every node. Its times are short: unwanted tasks are soon removed,
// and the tasks of a lost node soon taken over.
func (l *Lab) remoteConfig(ctx context.Context, plugin string) (string, error) {
	config := `api {
  address = "http://127.0.0.1:${http_port}"
}
`
	if l.remote != remoteSim {
		return config, nil
	}
	host, err := l.host(ctx, plugin)
	if err != nil {
		return "", err
	}
	times := "lease      = \"6s\"\nreap_every = \"2s\"\nreap_after = \"4s\"\n\n"
	config = fmt.Sprintf("cluster    = %q\n", l.cluster()) + times + config + "\n" + host
	if socket := l.engine(ctx); socket != "" {
		config += fmt.Sprintf("\nendpoint %q {\n  address = \"127.0.0.1\"\n\n  docker {\n    host = \"unix://%s\"\n  }\n}\n",
			remoteEngine, socket)
	}
	return config, nil
}

// cluster is the lab's name for the plugin: others may have a lab on the same engine.
func (l *Lab) cluster() string { return fmt.Sprintf("lab-%.6x", sha256.Sum256([]byte(l.dir))) }

// engine is the socket of Docker or Podman on this machine, empty where neither answers.
func (l *Lab) engine(ctx context.Context) string {
	if l.docker(ctx) == nil {
		if host := cmp.Or(os.Getenv("DOCKER_HOST"), "unix:///var/run/docker.sock"); strings.HasPrefix(host, "unix://") {
			return strings.TrimPrefix(host, "unix://")
		}
	}
	const podman = "/run/podman/podman.sock"
	if c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", podman); err == nil {
		c.Close()
		return podman
	}
	return ""
}

// hostFile describes the host that runs (remotehost.Host as JSON), for later commands.
func (l *Lab) hostFile() string { return filepath.Join(l.dir, "host.json") }

// hostDir has the host's home directories.
func (l *Lab) hostDir() string { return filepath.Join(l.dir, "host") }

// host returns the host's block. It makes the host where there is none, or where it has ended. The process carries the
// agent's mark, so it ends with the agent, and with it everything that runs on the host.
func (l *Lab) host(ctx context.Context, plugin string) (block string, err error) {
	var h remotehost.Host
	text, err := os.ReadFile(l.hostFile())
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err == nil && h.Process.Alive() {
		return h.Block, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("failed to read what the simulated host is: %w", err)
	}
	end := l.step(ctx, "Making a host with an SSH server")
	defer func() { end(err, "endpoint %q", remoteHost) }()
	if !agent.Privileged() {
		return "", errors.New("a host is simulated by root: start the lab as root, where /sys/fs/cgroup can be written")
	}
	if err := errors.Join(os.MkdirAll(l.dir, 0o755), os.RemoveAll(l.hostDir())); err != nil { // of before a reboot
		return "", err
	}
	if h, err = remotehost.Start(ctx, plugin, l.hostDir(), remoteHost, agent.Mark(l.dir)); err == nil {
		if text, err = json.Marshal(h); err == nil {
			err = os.WriteFile(l.hostFile(), text, 0o644)
		}
	}
	if err != nil {
		_ = os.Remove(l.dir) // unless there is something else in it
	}
	return h.Block, err
}

// moreNodes are the directories of a lab's other nodes. They are in a lab with a remote host.
var moreNodes = []string{"node2", "node3"}

// nodes are the agents of the lab's other nodes, none in most labs.
func (l *Lab) nodes(ctx context.Context) (nodes []agent.Agent, err error) {
	for _, name := range moreNodes {
		a, err := agent.Open(ctx, filepath.Join(l.dir, name))
		if err != nil && !errors.Is(err, agent.ErrNone) {
			return nil, err
		}
		if err == nil {
			nodes = append(nodes, a)
		}
	}
	return nodes, nil
}

// nodeOptions are those of another node of the lab with options o, whose agent is a. It has the one plugin for which
// there are several nodes.
func nodeOptions(o agent.Options, a agent.Agent, name string) agent.Options {
	return agent.Options{
		Dir: filepath.Join(a.Info().Dir, name), Name: name, Binary: o.Binary,
		Server:   (&agent.Cluster{Server: a}).RPC(),
		Plugins:  slices.DeleteFunc(slices.Clone(o.Plugins), func(p agent.Plugin) bool { return p.Name() != remotePlugin }),
		Progress: o.Progress,
	}
}

// join starts the other nodes, unless they run.
func (l *Lab) join(ctx context.Context, a agent.Agent, o agent.Options) (err error) {
	if l.remote != remoteSim {
		return nil
	}
	end := l.step(ctx, "Starting the other nodes")
	defer func() { end(err, "%s", joined(moreNodes)) }()
	errs := make([]error, len(moreNodes))
	var all sync.WaitGroup
	for i, name := range moreNodes {
		all.Go(func() { errs[i] = startNode(ctx, nodeOptions(o, a, name)) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func startNode(ctx context.Context, o agent.Options) error {
	n, err := agent.Open(ctx, o.Dir)
	if errors.Is(err, agent.ErrNone) {
		_, err := agent.Run(ctx, o)
		return err
	}
	if err != nil {
		return err
	}
	if n.Alive(ctx) != nil { // as update does it with the first
		if err := (change{plugins: binaries(o), options: &o}).apply(ctx, n); err != nil {
			return err
		}
		if err := n.Start(ctx); err != nil {
			return err
		}
	}
	_, err = agent.WaitHealthy(ctx, n)
	return err
}

// binaries are those of the plugins.
func binaries(o agent.Options) (paths []string) {
	for _, p := range o.Plugins {
		paths = append(paths, p.Binary)
	}
	return paths
}

// nodesHealthy waits for the other nodes that run.
func (l *Lab) nodesHealthy(ctx context.Context) error {
	nodes, err := l.nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.Alive(ctx) != nil {
			continue
		}
		if _, err := agent.WaitHealthy(ctx, n, Missing(l.steps)); err != nil {
			return fmt.Errorf("node %s: %w", filepath.Base(n.Info().Dir), err)
		}
	}
	return nil
}

// removeNodes ends the lab's jobs and its other nodes, before the agent that is their server ends.
func (l *Lab) removeNodes(ctx context.Context) error {
	var errs []error
	if nodes, err := l.nodes(ctx); err == nil && len(nodes) > 0 {
		if a, err := agent.Open(ctx, l.dir); err == nil && a.Alive(ctx) == nil {
			errs = append(errs, agent.StopJobs(ctx, a.Client()))
		}
		for _, n := range nodes { // both, before the first looks for what it may have left
			errs = append(errs, n.Stop(ctx))
		}
	}
	for _, name := range moreNodes {
		if err := agent.Remove(ctx, filepath.Join(l.dir, name)); err != nil && !errors.Is(err, agent.ErrNone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
