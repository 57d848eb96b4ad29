// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/docker"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine/histories"
)

// link is a node's way to an engine, which may be cut in the middle of calls.
type link struct {
	lines
	down bool
}

func (l *link) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Err: errors.New("the link is down")}
	}
	return l.lines.dial(ctx, "unix", "/on/the/host")
}

func (l *link) set(down bool) {
	l.mu.Lock()
	l.down = down
	l.mu.Unlock()
	if down {
		l.cut()
	}
}

// Three nodes on a real engine, whose links go down in the middle of calls: 2,000 operations on Docker, 100 on Podman;
// of a sample one history on each.
func TestEndpoint_IsOwnedByOneAtATime(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		for _, seed := range histories.Seeds(t, map[string]int{"docker": 20, "podman": 1}[e.name]) {
			t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
				t.Parallel() // it mostly waits for the ends of leases
				history(t, e, seed, 100)
			})
		}
	})
}

func history(t *testing.T, e *engine, seed uint64, operations int) {
	const lease = 2 * time.Second
	dir := t.TempDir()
	var nodes [3]*docker.Endpoint
	var links [3]link
	for i := range nodes {
		links[i].path = strings.TrimPrefix(e.host, "unix://")
		c, err := docker.New(docker.Options{Host: "unix:///on/the/host", Lease: lease, Dial: links[i].dial})
		must.NoError(t, err)
		t.Cleanup(func() { must.NoError(t, c.Close()) })
		nodes[i] = c
	}
	program := histories.Program(fmt.Sprintf("nc -l -p $((%d + ${JOB##*-})) </dev/null", 20000+seed%20*500))
	histories.Run(t, histories.Options{
		Seed: seed, Operations: operations, Name: t.Name(), Lease: lease, Late: true,
		Endpoint: func(node int) endpoint.Endpoint { return nodes[node] },
		Spec: func(job string) *endpoint.Spec {
			s := shell(program)
			s.Env["DIR"], s.Env["JOB"], s.Container.Network = "/c", job, "host"
			s.Container.Mounts = []endpoint.ContainerMount{{Type: "bind", Source: dir, Target: "/c"}}
			return s
		},
		Cut: func(node int, off bool) { links[node].set(off) },
		Exit: func(object string, code int) {
			_, _ = e.api.ContainerKill(t.Context(), object, client.ContainerKillOptions{ // if it runs
				Signal: []string{"SIGUSR1", "SIGUSR2"}[code],
			})
		},
		Runs: func(job string) []histories.Ran { return histories.ReadRuns(t, dir, job) },
	})
}
