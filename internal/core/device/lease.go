package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
)

// Releaser is an instance that must know when a device is free again. Nomad never
// says so: its contract has Reserve and no release. The core releases what is
// reserved a second time, since Nomad gives away nothing that is in use, and what its
// holder has left for good. The methods of a Releaser, Reserve among them, are called
// one at a time.
type Releaser interface {
	// Leases lists who holds what, from a record that outlives this process (such
	// as a property of the device itself).
	Leases(ctx context.Context) ([]Lease, error)

	// Release takes a device back. It is idempotent: it is also called for what
	// nobody holds, before each Reserve, and after one that failed.
	Release(ctx context.Context, id string) error
}

// Lease is a device that has a holder.
type Lease struct {
	ID    string
	Since time.Time

	// Left: its holder has been seen to be gone for good.
	Left bool
}

// lease reserves from a Releaser. Whoever held one of these holds it no more, since
// Nomad gives it away; and where not all can be had, none is held.
func (p *Server) lease(ctx context.Context, inst *instance, ids []string) (*device.ContainerReservation, error) {
	if err := p.leasing.enter(ctx); err != nil {
		return nil, fmt.Errorf("other devices are still being reserved or released: %w", err)
	}
	defer p.leasing.leave()
	if err := releaseAll(ctx, inst.releaser, ids); err != nil {
		return nil, fmt.Errorf("failed to take back what is reserved anew: %w", err)
	}
	r, err := inst.Reserve(ctx, ids)
	if err != nil {
		return nil, errors.Join(err, releaseAll(ctx, inst.releaser, ids))
	}
	return r, nil
}

func releaseAll(ctx context.Context, l Releaser, ids []string) (all error) {
	for _, id := range ids {
		if err := l.Release(ctx, id); err != nil {
			all = errors.Join(all, fmt.Errorf("failed to release %q: %w", id, err))
		}
	}
	return all
}

// sweep releases what has been left, now and at each period, until ctx ends.
func (p *Server) sweep(ctx context.Context, l Releaser, period time.Duration) {
	failing := once{log: p.logger.Error}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		if err := p.releaseLeft(ctx, l); err == nil {
			failing.over()
		} else if ctx.Err() == nil {
			failing.failed("failed to release what has been left", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// releaseLeft looks and releases without a reservation in between: one that was
// left a moment ago may have been given away again.
func (p *Server) releaseLeft(ctx context.Context, l Releaser) error {
	if err := p.leasing.enter(ctx); err != nil {
		return err
	}
	defer p.leasing.leave()
	return guard(func() error {
		leases, err := l.Leases(ctx)
		if err != nil {
			return err
		}
		var left []string
		for _, lease := range leases {
			if lease.Left {
				left = append(left, lease.ID)
			}
		}
		return releaseAll(ctx, l, left)
	})
}
