// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"golang.org/x/sync/semaphore"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
)

// Releaser is an Instance whose devices must be released before another task gets them. Nomad never reports that a task
// no longer uses a device: its contract has Reserve but no release. The core therefore releases a device in two cases:
// when Nomad reserves it again, which shows that Nomad no longer considers it in use, and when the instance reports
// that the lease has ended (Lease.Ended).
//
// For one device, calls of Release and Reserve never overlap. Different devices are reserved and released concurrently,
// so a device that can't be released does not delay other devices. Leases may be called at any time.
type Releaser interface {
	// Leases returns the current leases of the devices with these ids, or of all devices if ids is
	// empty. They come from a record that must outlive this process, such as a property of the device
	// itself. Leases of other devices are ignored.
	Leases(ctx context.Context, ids ...string) ([]Lease, error)

	// Release ends a lease that Leases has just returned. While the device is in use, Release changes nothing and
	// returns an error that wraps ErrInUse. The core then calls Release again: every second during the grace period if
	// a Reserve waits for the device, and otherwise in the next sweep, after Options.Period. The core also calls
	// Release to clean up after a Reserve that failed.
	Release(ctx context.Context, l Lease) error
}

// Lease is one reservation of one device, as the instance has recorded it.
type Lease struct {
	// ID is the id of the device.
	ID string

	// Holder identifies the reservation and is unique. It names the allocation and task if they are known; otherwise it
	// can be a number or the time of the reservation. It appears in errors and log lines.
	Holder string

	// Key is an optional name by which the instance's Release finds the reservation.
	Key string

	// Ended is set if there is evidence that the holder has ended and will never use the device again.
	Ended bool
}

// ErrInUse indicates that a previous holder still uses the device. Release and Reserve may wrap it. A later call will
// succeed, once that use has ended.
var ErrInUse = errors.New("the device is still in use")

// slot serializes the calls of Release and Reserve for one device.
type slot struct {
	*semaphore.Weighted      // held while the device is reserved or released; protects failing
	failing             once // logs the errors of releaseEnded
}

// slot returns the slot of a device, and creates it on first use.
func (p *Server) slot(id string) *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots[id] == nil {
		p.slots[id] = &slot{Weighted: semaphore.NewWeighted(1), failing: once{log: p.logger.Warn}}
	}
	return p.slots[id]
}

// reserve releases the devices before it reserves them. If it can't reserve all of them, it leaves
// none reserved. The ids are sorted, so two calls can't deadlock.
func (p *Server) reserve(ctx context.Context, inst *instance, ids []string) (*device.ContainerReservation, error) {
	if inst.releaser == nil {
		return inst.Reserve(ctx, ids)
	}
	for _, id := range ids {
		slot := p.slot(id)
		if err := slot.Acquire(ctx, 1); err != nil {
			return nil, fmt.Errorf("device %q is still being reserved or released: %w", id, err)
		}
		defer slot.Release(1)
	}
	if err := releaseAll(ctx, inst.releaser, ids); err != nil {
		return nil, err
	}
	r, err := inst.Reserve(ctx, ids)
	if err != nil {
		return nil, errors.Join(err, releaseAll(ctx, inst.releaser, ids))
	}
	return r, nil
}

// releaseAll ends all leases of these devices.
func releaseAll(ctx context.Context, r Releaser, ids []string) error {
	leases, err := r.Leases(ctx, ids...)
	if err != nil {
		return fmt.Errorf("failed to list device leases: %w", err)
	}
	var all error
	for _, l := range leases {
		if slices.Contains(ids, l.ID) {
			all = errors.Join(all, release(ctx, r, l))
		}
	}
	return all
}

func release(ctx context.Context, r Releaser, l Lease) error {
	if err := r.Release(ctx, l); err != nil {
		return fmt.Errorf("failed to release device %q, held by %s: %w", l.ID, l.Holder, err)
	}
	return nil
}

// sweep releases devices whose leases have ended: immediately, once per period and after each kick,
// until ctx ends.
func (p *Server) sweep(ctx context.Context, r Releaser, period time.Duration) {
	failing := once{log: p.logger.Error}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		var leases []Lease
		err := fingerprint.Guard(func() (err error) {
			leases, err = r.Leases(ctx)
			return err
		})
		if err != nil && ctx.Err() == nil {
			failing.failed("failed to list device leases", err)
		} else if failing.over() {
			p.logger.Info("listing device leases works again")
		}
		for _, l := range leases {
			if slot := p.slot(l.ID); l.Ended && slot.TryAcquire(1) {
				go p.releaseEnded(ctx, r, l, slot)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.sweeps:
		}
	}
}

// releaseEnded releases a device whose lease has ended, and then the device's slot, which the caller has acquired. It
// lists the lease again first, because the device may have been reserved since the sweep listed it.
func (p *Server) releaseEnded(ctx context.Context, r Releaser, l Lease, held *slot) {
	defer held.Release(1)
	limited, cancel := context.WithTimeout(ctx, grantTime)
	defer cancel()
	err := fingerprint.Guard(func() error {
		now, err := r.Leases(limited, l.ID)
		if err != nil || !slices.Contains(now, l) {
			return err
		}
		return release(limited, r, l)
	})
	if err == nil {
		held.failing.over()
		p.logger.Debug("device released", "device", l.ID, "holder", l.Holder)
	} else if ctx.Err() == nil {
		held.failing.failed("a lease has ended, but its device is still held", err)
	}
}
