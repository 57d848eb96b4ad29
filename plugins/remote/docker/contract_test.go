// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"testing"

	"github.com/moby/moby/client"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/docker"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint/endpointtest"
)

func TestContract_Docker(t *testing.T) { contract(t, engines.docker) }
func TestContract_Podman(t *testing.T) { contract(t, engines.podman) }

func contract(t *testing.T, start func() (*engine, error)) {
	t.Parallel()
	e, err := start()
	if err != nil {
		t.Skip(err)
	}
	missing := shell("")
	missing.Container.Entrypoint = []string{"/no/such/program"}
	endpointtest.Run(t, endpointtest.Column{
		Connect: func(t testing.TB) endpoint.Endpoint {
			c, err := docker.New(docker.Options{Host: e.host, Lease: leaseTime})
			must.NoError(t, err)
			return c
		},
		Lease:    leaseTime,
		Shell:    shell,
		Missing:  missing,
		User:     "1234",
		Parallel: true,
		Memory:   e.name == "docker", // Podman 4.3.1 does not tell it on cgroup v1
		Lose: func(t testing.TB, r *endpoint.Record) {
			_, err := e.api.ContainerRemove(context.Background(), r.Name, client.ContainerRemoveOptions{Force: true})
			must.NoError(t, err)
		},
	})
}
