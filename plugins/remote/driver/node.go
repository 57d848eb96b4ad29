// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	core "github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/remote/cluster"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// node is the engine of this node. It starts nothing before its first use, since Nomad makes some instances
// only to check their configuration.
type node struct {
	endpoints *Endpoints
	prober    *prober
	logger    hclog.Logger
	made      time.Time

	mu     sync.Mutex
	engine *engine.Engine // nil before its first use
	closed bool
}

var (
	_ core.Engine  = (*node)(nil)
	_ core.Prober  = (*node)(nil)
	_ core.Capable = (*node)(nil)
)

func newNode(c Config, logger hclog.Logger) *node {
	e := NewEndpoints(c, Open, logger)
	return &node{endpoints: e, prober: newProber(e), logger: logger, made: time.Now()}
}

func (n *node) use() (*engine.Engine, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, errClosed
	}
	if n.engine == nil {
		n.engine = engine.New(n.endpoints.engine(n.logger))
	}
	return n.engine, nil
}

// engine are the options of the engine.
func (e *Endpoints) engine(logger hclog.Logger) engine.Options {
	host, _ := os.Hostname()
	return engine.Options{
		Endpoint: e.Get, Endpoints: e.Names(), Task: e.task,
		Cluster: e.nomad, Name: e.config.Cluster, Lease: e.config.Lease.Duration(), Node: host,
		ReapEvery: e.config.ReapEvery.Duration(), ReapAfter: e.config.ReapAfter.Duration(),
		Logger: logger,
	}
}

// Reaper returns an engine without tasks, for its method Reap. The caller closes it.
func (e *Endpoints) Reaper() *engine.Engine {
	o := e.engine(e.logger)
	o.ReapEvery = 0
	return engine.New(o)
}

// task is how a task is run.
func (e *Endpoints) task(_ context.Context, s *core.Start) (*engine.Task, error) {
	t := s.Config.(*TaskConfig)
	c, ok := e.config.Endpoints[t.Endpoint]
	if !ok {
		return nil, e.unknown(t.Endpoint)
	}
	if err := t.fits(t.Endpoint, c); err != nil {
		return nil, err
	}
	return &engine.Task{
		Endpoint: t.Endpoint, Address: c.Reached(), MaxTasks: c.MaxTasks,
		Spec:    t.spec(s.Task, c),
		Stop:    engine.StopOptions{OnDrain: t.OnDrain, OnUnknown: t.OnUnknown},
		Restart: t.OnLost == "restart",
		Orphan:  t.OrphanTimeout.Duration(),
		Kill:    endpoint.Kill{Signal: t.Kill.Signal, Grace: t.Kill.Grace.Duration()},
	}, nil
}

// Start is part of core.Engine.
func (n *node) Start(ctx context.Context, s *core.Start) (core.Task, error) {
	e, err := n.use()
	if err != nil {
		return nil, err
	}
	return e.Start(ctx, s)
}

// Recover is part of core.Engine.
func (n *node) Recover(
	ctx context.Context, c *drivers.TaskConfig, saved []byte, event core.Event,
) (core.Task, error) {
	e, err := n.use()
	if err != nil {
		return nil, err
	}
	return e.Recover(ctx, c, saved, event)
}

// Destroy is part of core.Engine.
func (n *node) Destroy(ctx context.Context, id string) error {
	e, err := n.use()
	if err != nil {
		return err
	}
	return e.Destroy(ctx, id)
}

// Capabilities is part of core.Capable.
func (n *node) Capabilities(c *drivers.Capabilities) { c.DisableLogCollection = true }

// Probe is part of core.Prober. From the first one on the reaper runs, also where no task is
// started: it is how tasks end that nobody comes for.
func (n *node) Probe(ctx context.Context) (core.Node, error) {
	if len(n.endpoints.config.Endpoints) == 0 {
		return core.Node{}, core.Undetected("no endpoint is configured")
	}
	if _, err := n.use(); err != nil {
		return core.Node{}, err
	}
	sight := make(chan cluster.Sight, 1)
	go func() { sight <- n.endpoints.Sight(ctx) }()
	at := n.prober.node(ctx)
	api := <-sight
	at.Attributes["api"] = structs.NewStringAttribute(n.prober.word("api", api.Reason))
	if (len(at.Missing) > 0 || !api.All) && time.Since(n.made) < time.Minute {
		at.Again = 3 * time.Second // an agent's own API, for one, is there after its drivers
	}
	return at, nil
}

// Close is part of io.Closer. Tasks go on.
func (n *node) Close() error {
	n.mu.Lock()
	running := n.engine
	n.closed = true
	n.mu.Unlock()
	var err error
	if running != nil {
		err = running.Close()
	}
	if closed := n.endpoints.Close(); closed != nil {
		err = errors.Join(err, fmt.Errorf("failed to close connections: %w", closed))
	}
	return err
}
