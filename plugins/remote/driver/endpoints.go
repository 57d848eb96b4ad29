// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/plugins/remote/cluster"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Endpoints are those of a configuration, each with at most one connection, which its first
// use makes.
type Endpoints struct {
	config Config
	open   func(Endpoint, time.Duration) (endpoint.Endpoint, error)
	logger hclog.Logger
	nomad  *cluster.Client

	mu     sync.Mutex
	opened map[string]endpoint.Endpoint
	closed bool
}

// NewEndpoints returns the endpoints of a configuration. Each is opened at its first use by open, usually Open.
func NewEndpoints(
	c Config, open func(Endpoint, time.Duration) (endpoint.Endpoint, error), logger hclog.Logger,
) *Endpoints {
	return &Endpoints{
		config: c, open: open, logger: logger, nomad: newCluster(c.API), opened: map[string]endpoint.Endpoint{},
	}
}

// Names returns the names of all endpoints, sorted.
func (e *Endpoints) Names() []string { return slices.Sorted(maps.Keys(e.config.Endpoints)) }

// Get returns the endpoint of this name. It does not connect to it.
func (e *Endpoints) Get(name string) (endpoint.Endpoint, error) {
	c, ok := e.config.Endpoints[name]
	if !ok {
		return nil, e.unknown(name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosed
	}
	if found := e.opened[name]; found != nil {
		return found, nil
	}
	opened, err := e.open(c, e.config.Lease.Duration())
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", name, err)
	}
	e.opened[name] = opened
	return opened, nil
}

func (e *Endpoints) unknown(name string) error {
	names := e.Names()
	if len(names) == 0 {
		return fmt.Errorf("endpoint %q is not known: this node's configuration of the plugin has none", name)
	}
	return fmt.Errorf("endpoint %q is not known: this node has \"%s\"", name, strings.Join(names, "\", \""))
}

// Close ends all connections. Tasks go on.
func (e *Endpoints) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	errs := []error{e.nomad.Close()}
	for _, o := range e.opened {
		errs = append(errs, o.Close())
	}
	clear(e.opened)
	return errors.Join(errs...)
}

var errClosed = errors.New("the plugin ends")
