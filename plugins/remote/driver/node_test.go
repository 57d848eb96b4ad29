// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	core "github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// socket counts who connects to it.
func socket(t *testing.T) (path string, count *atomic.Int32) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	must.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	count = &atomic.Int32{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			c.Close()
		}
	}()
	return path, count
}

// Nomad makes instances only to see whether their configuration is valid.
func TestNode_DoesNothingBeforeItsFirstUse(t *testing.T) {
	docker, atDocker := socket(t)
	nomad, atNomad := socket(t)
	c, err := decodeConfig(t, `api { address = "unix://`+nomad+`" }; `+docker1(`host = "unix://`+docker+`"`)+`; reap_every = "1s"`)
	must.NoError(t, err)
	i, err := Plugin().New(c, hclog.NewNullLogger())
	must.NoError(t, err)
	n := i.(core.EngineProvider).Engine().(*node)
	caps := &drivers.Capabilities{}
	n.Capabilities(caps)
	test.True(t, caps.DisableLogCollection)
	test.Eq(t, 0, atDocker.Load()+atNomad.Load())
	test.Nil(t, n.engine)

	at, err := n.Probe(t.Context())
	must.NoError(t, err)
	test.SliceLen(t, 1, at.Missing)
	test.Positive(t, at.Again, test.Sprint("the agent's API may answer soon"))
	test.Positive(t, atDocker.Load())
	test.Positive(t, atNomad.Load())
	must.NoError(t, n.Close())
	_, err = n.Start(t.Context(), &core.Start{})
	test.ErrorIs(t, err, errClosed)
}

func TestNode_WithoutEndpointsIsUndetected(t *testing.T) {
	n := newNode(Config{}, hclog.NewNullLogger())
	_, err := n.Probe(t.Context())
	test.Eq(t, error(core.Undetected("no endpoint is configured")), err)
	must.NoError(t, n.Close())
}

func TestTask_BecomesItsSpecification(t *testing.T) {
	e := NewEndpoints(Config{Endpoints: map[string]Endpoint{
		"a": {SSH: &SSH{Host: "gpu1"}, MaxTasks: 3}, "b": {Docker: &Docker{Host: "tcp://build:2376"}, Address: "203.0.113.9"},
	}}, Open, hclog.NewNullLogger())
	cfg := &drivers.TaskConfig{Name: "main", User: "ci", Env: map[string]string{"A": "b"}}
	c := task1(func(c *TaskConfig) {
		c.Command, c.Args, c.KillMode = "train", []string{"-v"}, new("all")
		c.Ports, c.Resources = map[string]string{"http": "8080"}, Resources{CPU: "1.5", Memory: "1GiB", Pids: 9}
		c.OnLost, c.OnDrain, c.OrphanTimeout, c.Kill = "restart", "stop", "1h", Kill{"SIGINT", "5s"}
	})
	got, err := e.task(t.Context(), &core.Start{Task: cfg, Config: &c})
	must.NoError(t, err)
	test.Eq(t, &engine.Task{
		Endpoint: "a", Address: "gpu1", MaxTasks: 3, Restart: true, Orphan: 3600e9,
		Kill: endpoint.Kill{Signal: "SIGINT", Grace: 5e9}, Stop: engine.StopOptions{OnDrain: "stop", OnUnknown: "release"},
		Spec: &endpoint.Spec{
			Task: "main", Env: cfg.Env, User: "ci", Ports: map[string]int{"http": 8080}, MaxFiles: 10, MaxSize: 10 << 20,
			Resources: endpoint.Resources{CPU: 1.5, Memory: 1 << 30, Pids: 9},
			Process:   &endpoint.Process{Command: "train", Args: []string{"-v"}, Mode: "all"},
		},
	}, got)

	c = task1(func(c *TaskConfig) {
		c.Endpoint, c.Image, c.Pull, c.Entrypoint = "b", "busybox", new("never"), []string{"sh"}
		c.Args, c.Mounts, c.Network = []string{"-c", "true"}, []Mount{{"volume", "v", "/v", true}}, "lan"
		c.Ports, c.Publish = map[string]string{"http": "80"}, map[string]string{"http": "0"}
	})
	got, err = e.task(t.Context(), &core.Start{Task: cfg, Config: &c})
	must.NoError(t, err)
	test.Eq(t, "203.0.113.9", got.Address)
	test.Nil(t, got.Spec.Process)
	test.Eq(t, &endpoint.Container{
		Image: "busybox", Pull: "never", Entrypoint: []string{"sh"}, Command: []string{"-c", "true"}, Network: "lan",
		Publish: map[string]int{"http": 0},
		Mounts:  []endpoint.ContainerMount{{Type: "volume", Source: "v", Target: "/v", ReadOnly: true}},
	}, got.Spec.Container)

	c.Endpoint = "c"
	_, err = e.task(t.Context(), &core.Start{Task: cfg, Config: &c})
	test.EqError(t, err, `endpoint "c" is not known: this node has "a", "b"`)
}
