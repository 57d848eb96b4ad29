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

	endpoint = "box"        // the SSH host's name in jobs
	hostJob  = "remote-sim" // the job that runs the SSH server
)

func (l *Lab) hostDir() string { return filepath.Join(l.dir, "sshd") }

var listens = regexp.MustCompile(`ListenAddress 127\.0\.0\.1:(\d+)`)

// makeHost writes the SSH server's keys and configuration into the lab's directory. A running server keeps its port.
func (l *Lab) makeHost(ctx context.Context) (h sshd.Server, err error) {
	end := l.step(ctx, "Preparing the host")
	defer func() { end(err, "an SSH server at 127.0.0.1:%d", h.Port) }()
	ports, err := agent.FreePorts(1)
	if err != nil {
		return h, err
	}
	dir, port := l.hostDir(), ports[0]
	config, _ := os.ReadFile(filepath.Join(dir, "sshd_config")) // a new lab has no file
	if found := listens.FindSubmatch(config); found != nil {
		port, _ = strconv.Atoi(string(found[1]))
	}
	if err := errors.Join(os.MkdirAll(l.dir, 0o755), os.MkdirAll(dir, 0o700)); err != nil {
		return h, err
	}
	if h, err = sshd.Write(dir, port); err != nil {
		_, _ = os.Remove(dir), os.Remove(l.dir) // fails unless they are empty
	}
	if errors.Is(err, sshd.ErrMissing) {
		err = fmt.Errorf("%w: run sudo apt-get install openssh-server (its service need not run)", err)
	}
	return h, err
}

// remoteConfig returns the remote plugin's configuration for nodes that reach the SSH host. On the host, all of them
// use one directory in the agent's state directory: its path is short enough for sockets, and lab:down removes it.
func (l *Lab) remoteConfig(a agent.Agent) (string, error) {
	me, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("failed to find the user who logs in to the SSH host: %w", err)
	}
	return "api { address = \"http://127.0.0.1:${http_port}\" }\n\n" +
		l.host.Endpoint(endpoint, filepath.Join(a.StateDir(), "host"), me.Username), nil
}

// startHost starts the job of the SSH server, if the lab has an SSH host. The host is reachable while the job runs.
func (l *Lab) startHost(ctx context.Context, a agent.Agent) (err error) {
	if !l.remote {
		return nil
	}
	end := l.step(ctx, "Starting the host")
	defer func() { end(err, "endpoint %q, by job %s", endpoint, hostJob) }()
	resources := &api.Resources{CPU: new(500), MemoryMB: new(256)} // also for sessions: a shell and a copy of the plugin
	job := service(hostJob, resources, l.host.Args[0], l.host.Args[1:]...)
	return serve(ctx, a, job, func(context.Context) bool { return true })
}

// reached reports whether the remote plugin on the agent's node can use the SSH host.
func reached(ctx context.Context, a agent.Agent) bool {
	node, err := nomad.Self(ctx, a.Client(), a.DataDir())
	if err != nil {
		return false
	}
	healthy, _ := strconv.ParseBool(node.Attributes["driver."+remoteDriver+".endpoint."+endpoint+".healthy"])
	return healthy
}
