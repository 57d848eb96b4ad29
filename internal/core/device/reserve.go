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

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
	"github.com/outrider-dev/outrider/internal/core/reservation"
)

const (
	// maxWait limits how long Reserve waits for a device. Nomad can't stop a task during that wait, because Reserve has
	// no context.
	maxWait = 30 * time.Second

	// scanWait is how long Reserve waits for the first scan, even if Options.Grace is shorter.
	scanWait = 10 * time.Second

	// grantTime limits one attempt to reserve or release devices.
	grantTime = time.Minute
)

// Reserve is part of device.DevicePlugin. If a device has vanished or is still in use, it waits for
// the grace period, but at most half a minute.
func (p *Server) Reserve(ids []string) (*device.ContainerReservation, error) {
	inst, err := p.configuredInstance()
	switch {
	case err != nil:
		return nil, err
	case len(ids) == 0:
		// the scheduler requests an empty list if no healthy device meets a constraint
		return nil, errors.New("no device was requested: a constraint in the job names a device that is unhealthy or missing")
	}
	ids = slices.Sorted(slices.Values(ids))
	for i := range ids[1:] {
		if ids[i] == ids[i+1] {
			return nil, fmt.Errorf("device %q was requested twice", ids[i])
		}
	}
	p.scanAnyway(inst)
	limit := min(inst.Grace, maxWait)
	if !p.current.Load().scanned {
		limit = max(limit, scanWait)
	}
	ctx, stop := context.WithTimeout(p.ctx, limit)
	defer stop()
	r, err := p.await(ctx, inst, ids)
	if err != nil && p.isGivenUp() && p.ctx.Err() == nil {
		err = fmt.Errorf("%w (%s)", err, givenUp)
	}
	switch {
	case errors.As(err, new(passing)) && p.ctx.Err() != nil:
		return nil, fmt.Errorf("%w (the plugin is shutting down)", err)
	case errors.As(err, new(passing)):
		return nil, fmt.Errorf("%w (after a wait of %s)", err, limit)
	case err != nil:
		return nil, err
	}
	p.logger.Debug("devices reserved", "devices", ids)
	return complete(r, inst.MountsInEnvironment)
}

// await reserves the devices once all of them are healthy. It tries again while the reason for a failure is temporary:
// a device has vanished or is still in use, or no scan has succeeded. If ctx ends first, the error is of type passing.
// Any other error is returned immediately.
func (p *Server) await(ctx context.Context, inst *instance, ids []string) (*device.ContainerReservation, error) {
	again := time.NewTicker(time.Second)
	defer again.Stop()
	var stale *snapshot // the snapshot for which the instance has returned ErrVanished
	var vanished error
	for kicked := false; ; {
		s := p.current.Load()
		err := s.refusal(ids)
		if err == nil && s == stale {
			err = passing{vanished}
		}
		if err == nil {
			var r *device.ContainerReservation
			r, err = p.grant(inst, ids)
			switch {
			case errors.Is(err, ErrVanished):
				stale, vanished = s, err
				continue
			case errors.Is(err, ErrInUse):
				err = passing{err}
			default:
				return r, err
			}
		}
		if !errors.As(err, new(passing)) {
			return nil, err
		}
		if !kicked { // at most once a second: otherwise each scan would cause the next
			p.kick.Kick()
			kicked = true
		}
		select {
		case <-s.newer:
		case <-again.C:
			kicked = false
		case <-ctx.Done():
			return nil, err
		}
	}
}

// grant calls reserve with a time limit, and turns a panic into an error.
func (p *Server) grant(inst *instance, ids []string) (r *device.ContainerReservation, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, grantTime)
	defer cancel()
	err = fingerprint.Guard(func() (err error) {
		r, err = p.reserve(ctx, inst, ids)
		return err
	})
	var panicked *fingerprint.PanicError
	if errors.As(err, &panicked) {
		p.logger.Error("failed to reserve devices", "panic", panicked.Value, "stack", string(panicked.Stack))
		err = fmt.Errorf("failed to reserve devices: %w", err)
	}
	return r, err
}

// complete adds the environment variable for drivers to a reservation, and removes the mounts if hideMounts is set. It
// refuses a reservation that is nil or contains nil, because the agent would panic if it got one.
func complete(r *device.ContainerReservation, hideMounts bool) (*device.ContainerReservation, error) {
	if r == nil || slices.Contains(r.Devices, nil) || slices.Contains(r.Mounts, nil) {
		return nil, errors.New("the plugin returned an empty reservation: this is a bug in the plugin")
	}
	whole := *r
	if err := reservation.Remember(&whole); err != nil {
		return nil, fmt.Errorf("the plugin returned a reservation that no driver can use: %w", err)
	}
	if hideMounts {
		whole.Mounts = nil
	}
	return &whole, nil
}
