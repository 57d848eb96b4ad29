package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
)

// lease reserves from a Lessor. Whoever held one of these holds it no more, since
// Nomad gives it away; and where not all can be had, none is held.
func (p *Plugin) lease(ctx context.Context, l Lessor, ids []string) (*device.ContainerReservation, error) {
	if err := p.leasing.enter(ctx); err != nil {
		return nil, fmt.Errorf("other devices are still being reserved or released: %w", err)
	}
	defer p.leasing.leave()
	if err := releaseAll(ctx, l, ids); err != nil {
		return nil, fmt.Errorf("failed to take back what is reserved anew: %w", err)
	}
	r, err := l.Reserve(ctx, ids)
	if err != nil {
		return nil, errors.Join(err, releaseAll(ctx, l, ids))
	}
	return r, nil
}

func releaseAll(ctx context.Context, l Lessor, ids []string) (all error) {
	for _, id := range ids {
		if err := l.Release(ctx, id); err != nil {
			all = errors.Join(all, fmt.Errorf("failed to release %q: %w", id, err))
		}
	}
	return all
}

// sweep releases what has been left, now and at each period, until ctx ends.
func (p *Plugin) sweep(ctx context.Context, l Lessor, period time.Duration) {
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
func (p *Plugin) releaseLeft(ctx context.Context, l Lessor) error {
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
