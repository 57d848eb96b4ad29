// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"golang.org/x/sync/semaphore"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"
)

// Server implements device.DevicePlugin for any Plugin. Nomad calls it from several
// goroutines.
type Server struct {
	name      string
	config    schema.Described
	configure func(msgpack []byte) (*instance, error)
	logger    hclog.Logger
	ctx       context.Context
	kick      fingerprint.Kicker // asks the running stream for a scan
	sweeps    fingerprint.Kicker // asks for a sweep of leases

	instance atomic.Pointer[instance] // nil before SetConfig
	current  atomic.Pointer[snapshot] // the published devices

	scanning *semaphore.Weighted // held during a scan; protects ledger and expiry
	ledger   ledger              // the devices that earlier scans have found
	expiry   *time.Timer         // requests a scan when a grace period ends

	mu         sync.Mutex
	configured []byte             // the configuration from which instance was created
	supersede  context.CancelFunc // ends the scans of the previous stream
	scans      context.Context    // context of the running scans, nil before the first scan
	abandoned  bool               // reservations have started scans, because Nomad has opened no stream
	slots      map[string]*slot   // by device id; empty without a Releaser
}

var _ device.DevicePlugin = (*Server)(nil)

// instance is an Instance with its optional interfaces. An interface that it does not implement is nil.
type instance struct {
	Instance
	Options
	events   EventSource
	stats    StatsReporter
	releaser Releaser
}

// New returns the device plugin that Nomad calls. It does nothing before Nomad calls it. When ctx ends, calls of
// Reserve that are waiting return an error.
func New[C any](ctx context.Context, logger hclog.Logger, p Plugin[C]) *Server {
	config := schema.Of[C]()
	logger = logger.Named(p.Name)
	s := &Server{
		name: p.Name, config: config, logger: logger, ctx: ctx,
		kick: fingerprint.NewKicker(), sweeps: fingerprint.NewKicker(), scanning: semaphore.NewWeighted(1),
		ledger: ledger{}, slots: map[string]*slot{},
	}
	s.configure = func(msgpack []byte) (*instance, error) {
		c, err := config.Decode(msgpack)
		if err != nil {
			return nil, err
		}
		made, err := p.New(c, logger)
		if err != nil {
			return nil, err
		}
		return newInstance(made)
	}
	s.current.Store(newSnapshot())
	return s
}

func newInstance(made Instance) (*instance, error) {
	if made == nil {
		return nil, errors.New("the plugin created no instance: this is a bug in the plugin")
	}
	i := &instance{Instance: made, Options: DefaultOptions()}
	if tuned, ok := made.(Tuned); ok {
		i.Options = tuned.Options()
	}
	i.events, _ = made.(EventSource)
	i.stats, _ = made.(StatsReporter)
	i.releaser, _ = made.(Releaser)
	return i, i.check()
}

// PluginInfo is part of base.BasePlugin.
func (p *Server) PluginInfo() (*base.PluginInfoResponse, error) {
	return plugin.Info(base.PluginTypeDevice, device.ApiVersion010, p.name), nil
}

// ConfigSchema is part of base.BasePlugin.
func (p *Server) ConfigSchema() (*hclspec.Spec, error) { return p.config.Spec(), nil }

// SetConfig is part of base.BasePlugin. Nomad also calls it in short-lived processes, twice in each. A call with the
// same configuration changes nothing. A different configuration applies to all later reservations and to streams that
// are opened later; streams that are open keep the old one.
func (p *Server) SetConfig(c *base.Config) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.instance.Load() != nil && bytes.Equal(p.configured, c.PluginConfig) {
		return nil
	}
	i, err := p.configure(c.PluginConfig)
	if err != nil {
		return err
	}
	p.configured = bytes.Clone(c.PluginConfig)
	p.instance.Store(i)
	return nil
}

// configuredInstance returns the instance that SetConfig has created. Nomad always calls SetConfig before it opens a
// stream.
func (p *Server) configuredInstance() (*instance, error) {
	if i := p.instance.Load(); i != nil {
		return i, nil
	}
	return nil, errors.New("plugin has no configuration yet")
}
