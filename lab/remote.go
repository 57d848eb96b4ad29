// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/nomad"
)

const (
	remoteDriver = "remote"
	remotePlugin = agent.DriverPrefix + remoteDriver

	endpoint = "box"        // the name of the host in jobs
	hostJob  = "remote-sim" // the job that runs the host's SSH server
)

// hostDir returns the directory of the host's SSH server.
func (l *Lab) hostDir() string { return filepath.Join(l.dir, "sshd") }

var listens = regexp.MustCompile(`ListenAddress 127\.0\.0\.1:(\d+)`)

// makeHost writes the server's keys and configuration into the lab's directory. A running lab's server keeps its port.
func (l *Lab) makeHost(ctx context.Context) (h sshd.Server, err error) {
	end := l.step(ctx, "Preparing the host")
	defer func() { end(err, "an SSH server at 127.0.0.1:%d", h.Port) }()
	ports, err := agent.FreePorts(1)
	if err != nil {
		return h, err
	}
	dir, port := l.hostDir(), ports[0]
	config, _ := os.ReadFile(filepath.Join(dir, "sshd_config")) // missing in a new lab
	if found := listens.FindSubmatch(config); found != nil {
		port, _ = strconv.Atoi(string(found[1]))
	}
	if err := errors.Join(os.MkdirAll(l.dir, 0o755), os.MkdirAll(dir, 0o700)); err != nil {
		return h, err
	}
	if h, err = sshd.Write(dir, port); err != nil {
		_, _ = os.Remove(dir), os.Remove(l.dir) // only if they are empty
	}
	if errors.Is(err, sshd.ErrMissing) {
		err = fmt.Errorf("%w: run sudo apt-get install openssh-server (its service need not run)", err)
	}
	return h, err
}

// remoteConfig returns the plugin's configuration for the nodes that reach the host. They share one directory on the
// host, inside the plugin state of the lab's agent: its path is short enough for sockets, and lab:down removes it.
func (l *Lab) remoteConfig(a agent.Agent) (string, error) {
	me, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("failed to find the current user, who logs in to the SSH host: %w", err)
	}
	return "api { address = \"http://127.0.0.1:${http_port}\" }\n\n" +
		l.host.Endpoint(endpoint, filepath.Join(a.StateDir(), "host"), me.Username), nil
}

// startHost runs the job of the SSH server, if the lab has a host. The host is reachable while the job runs.
func (l *Lab) startHost(ctx context.Context, a agent.Agent) (err error) {
	if !l.remote {
		return nil
	}
	end := l.step(ctx, "Starting the host")
	defer func() { end(err, "endpoint %q, by job %s", endpoint, hostJob) }()
	resources := &api.Resources{CPU: new(500), MemoryMB: new(256)} // also for sessions: a copy of the plugin, a shell
	job := service(hostJob, resources, l.host.Args[0], l.host.Args[1:]...)
	return serve(ctx, a, job, func(context.Context) bool { return true })
}

// reached reports whether the plugin of an agent's own node can use the host.
func reached(ctx context.Context, a agent.Agent) bool {
	node, err := nomad.Self(ctx, a.Client(), a.DataDir())
	if err != nil {
		return false
	}
	healthy, _ := strconv.ParseBool(node.Attributes["driver."+remoteDriver+".endpoint."+endpoint+".healthy"])
	return healthy
}
