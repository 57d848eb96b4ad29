package device

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
)

// firstWait is how long the first message waits for the first scan, so that an
// agent's start is one update of its node, and a plugin that was started again on a
// busy machine does not take the node's devices away for a moment. Without a message
// the agent itself waits for 50 s (client/node_updater.go).
const firstWait = 10 * time.Second

// Fingerprint is part of device.DevicePlugin. The stream ends with its context and
// never before, and has no errors: Nomad answers either by dropping the plugin for
// good. The first message comes at once, an empty one if the first scan fails or
// takes long; further ones when anything has changed. A new stream takes the scans
// over from the last, which is silent from then on.
func (p *Server) Fingerprint(ctx context.Context) (<-chan *device.FingerprintResponse, error) {
	inst, err := p.configuredInstance()
	if err != nil {
		return nil, err
	}
	out := make(chan *device.FingerprintResponse)
	if inst.Disabled {
		go p.deliver(ctx, nil, out)
		return out, nil
	}
	p.mu.Lock()
	groups := p.scan(ctx, inst)
	p.given = false
	p.mu.Unlock()
	go p.deliver(ctx, groups, out)
	return out, nil
}

// scan begins to scan, until ctx ends or the next scan begins. The caller has p.mu.
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

// scanAnyway scans where no stream does, for a reservation. Nomad gives a plugin up that
// dies while it is configured, once for a new start of it, too; but what it has listed
// stays on the node, jobs are placed, and for their reservations it starts the plugin
// again, without a stream (client/devicemanager, instance.go).
func (p *Server) scanAnyway(inst *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.scans != nil && p.scans.Err() == nil {
		return
	}
	p.given = true
	p.scan(p.ctx, inst)
	time.AfterFunc(givenAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.given && p.ctx.Err() == nil {
			p.logger.Error("Nomad reserves devices and does not ask which there are: " + givenUp)
		}
	})
}

// isGivenUp says whether no stream has come so far: one may be behind a reservation.
func (p *Server) isGivenUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.given
}

// givenAfter is how long a stream may be behind a reservation, as where the plugin was
// killed and both are asked for anew.
const givenAfter = 10 * time.Second

const givenUp = "it has given this plugin up, and knows of no change since: restart the agent"

// scanner is what scans for one stream.
type scanner struct {
	*Server
	inst             *instance
	invalid, failing once
}

func (s *scanner) look(ctx context.Context) ([]*device.DeviceGroup, error) {
	if err := s.scanning.enter(ctx); err != nil { // a superseded stream's last scan
		return nil, err
	}
	defer s.scanning.leave()
	found, err := s.inst.List(ctx)
	if err != nil || ctx.Err() != nil {
		return nil, err
	}
	valid, left := inspect(found)
	s.invalid.say(left...)
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

// failed leaves the last list standing.
func (s *scanner) failed(_ []*device.DeviceGroup, _ bool, err error) []*device.DeviceGroup {
	s.failing.failed("failed to scan for devices, the last list stands", err)
	last := s.current.Load()
	if !last.scanned {
		now := newSnapshot()
		now.failure = errors.New(inWords(err))
		s.publish(now)
	}
	return last.groups
}

// deliver sends the newest groups, each time that they differ from what was sent
// before, until ctx ends. After firstWait it sends an empty list if there was
// nothing else to send, and at once where groups is nil.
func (p *Server) deliver(ctx context.Context, groups <-chan []*device.DeviceGroup,
	out chan<- *device.FingerprintResponse) {
	defer close(out)
	first := time.NewTimer(firstWait)
	defer first.Stop()
	var now, told []*device.DeviceGroup
	toldOnce := false
	var to chan<- *device.FingerprintResponse // out while there is something to tell
	if groups == nil {
		to = out
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-first.C:
			if !toldOnce && to == nil {
				p.logger.Warn("the first scan takes long: no device is published until it ends")
				to = out
			}
		case g, open := <-groups:
			if !open {
				groups = nil // superseded
				continue
			}
			if now, to = g, out; toldOnce && reflect.DeepEqual(told, now) {
				to = nil
			}
		case to <- device.NewFingerprint(now...):
			told, toldOnce, to = now, true, nil
		}
	}
}
