// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
)

// firstWait limits how long the first message waits for the first scan. Because of this wait, a starting agent updates
// its node only once, and the node's devices do not disappear for a moment when a plugin restarts on a busy machine.
// The wait is limited because the agent waits up to 50 s for the message (client/node_updater.go).
const firstWait = 10 * time.Second

// Fingerprint is part of device.DevicePlugin. The stream ends only with ctx and contains no errors:
// after an error or an early end, Nomad drops the plugin permanently. The first message follows the
// first scan, or is empty if that scan fails or takes long. Later messages are sent only after
// changes. A new stream takes over the scans of the previous one, which then sends nothing more.
func (p *Server) Fingerprint(ctx context.Context) (<-chan *device.FingerprintResponse, error) {
	inst, err := p.configuredInstance()
	if err != nil {
		return nil, err
	}
	out := make(chan *device.FingerprintResponse)
	p.mu.Lock()
	groups := p.scan(ctx, inst)
	p.abandoned = false
	p.mu.Unlock()
	go p.deliver(ctx, groups, out)
	return out, nil
}

// scan starts scans, which continue until ctx ends or scan is called again. The caller holds p.mu.
func (p *Server) scan(ctx context.Context, inst *instance) <-chan []*device.DeviceGroup {
	if p.supersede != nil {
		p.supersede()
	}
	scanning, cancel := context.WithCancel(ctx)
	p.supersede, p.scans = cancel, scanning

	s := &scanner{Server: p, inst: inst, invalid: once{log: p.logger.Warn}, failing: once{log: p.logger.Error}}
	groups := fingerprint.Loop[[]*device.DeviceGroup]{
		Probe: s.look, Failed: s.failed, Period: inst.Period, Kick: p.kick, Settle: inst.Settle,
	}.Run(scanning)
	if inst.events != nil {
		go p.listen(scanning, inst.events.Events)
	}
	if inst.releaser != nil {
		go p.sweep(scanning, inst.releaser, inst.Period)
	}
	return groups
}

// scanAnyway starts scanning for a reservation if no stream is open. Nomad gives up on a plugin that dies while it is
// being configured, even during a restart of the plugin. The plugin's devices stay on the node, so jobs that need them
// are still placed. To reserve a device, Nomad starts the plugin again, but opens no stream (client/devicemanager,
// instance.go).
func (p *Server) scanAnyway(inst *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.scans != nil && p.scans.Err() == nil {
		return
	}
	p.abandoned = true
	p.scan(p.ctx, inst)
	time.AfterFunc(givenAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.abandoned && p.ctx.Err() == nil {
			p.logger.Error("devices can still be reserved, but " + givenUp)
		}
	})
}

// isGivenUp reports whether devices were reserved although no stream is open. The result may change: Nomad may open a
// stream after the first reservation.
func (p *Server) isGivenUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.abandoned
}

const givenUp = "Nomad no longer reads the list of devices and misses all changes: restart the agent"

// givenAfter is how long after a reservation a stream may still be opened: if the plugin was killed,
// Nomad repeats the reservation and reopens the stream.
const givenAfter = 10 * time.Second

// scanner scans for one stream.
type scanner struct {
	*Server
	inst             *instance
	invalid, failing once
}

func (s *scanner) look(ctx context.Context) ([]*device.DeviceGroup, error) {
	if err := s.scanning.Acquire(ctx, 1); err != nil { // waits for the last scan of a superseded stream
		return nil, err
	}
	defer s.scanning.Release(1)
	found, err := s.inst.List(ctx)
	if err != nil || ctx.Err() != nil {
		return nil, err
	}
	valid, left := inspect(found)
	s.invalid.report(left...)
	if s.failing.over() {
		s.logger.Info("scanning for devices works again")
	}
	now, next := s.ledger.enter(valid, s.inst.Grace, time.Now())
	if s.expiry != nil {
		s.expiry.Stop()
	}
	if !next.IsZero() {
		s.expiry = time.AfterFunc(time.Until(next), s.kick.Kick)
	}
	s.publish(now)
	return now.groups, nil
}

// failed returns the last list, which stays valid after a failed scan.
func (s *scanner) failed(err error) []*device.DeviceGroup {
	s.failing.failed("failed to scan for devices; the last list stays valid", err)
	last := s.current.Load()
	if !last.scanned {
		now := newSnapshot()
		now.failure = err
		s.publish(now)
	}
	return last.groups
}

// deliver sends each list of groups until ctx ends. The loop that produces the lists omits
// unchanged ones. If no list arrives within firstWait, deliver sends an empty one.
func (p *Server) deliver(ctx context.Context, groups <-chan []*device.DeviceGroup,
	out chan<- *device.FingerprintResponse) {
	defer close(out)
	first := time.NewTimer(firstWait)
	defer first.Stop()
	sentEmpty := false
	for {
		var now []*device.DeviceGroup
		var open bool
		select {
		case <-ctx.Done():
			return
		case <-first.C:
			p.logger.Warn("the first scan for devices is slow: no device is published until it ends")
		case now, open = <-groups:
			if !open { // a newer stream has taken over the scans
				<-ctx.Done()
				return
			}
			first.Stop()
			if sentEmpty && len(now) == 0 {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return
		case out <- device.NewFingerprint(now...):
			sentEmpty = len(now) == 0
			p.logger.Debug("devices published", "groups", len(now))
		}
	}
}
