// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Signal is part of endpoint.Endpoint.
func (e *Endpoint) Signal(ctx context.Context, ref endpoint.Ref, signal string) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	v, err := e.own(ctx, ref)
	if err != nil {
		return err
	}
	if !v.box.running() {
		return fmt.Errorf("%s does not run", ref.Name)
	}
	return e.kill(ctx, v.box.id, signal)
}

func (e *Endpoint) kill(ctx context.Context, id, signal string) error {
	_, err := e.api.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: signal})
	return failed("send signal "+signal, err)
}

// killTime is how long a killed container may take to end.
const killTime = 30 * time.Second

// Stop is part of endpoint.Endpoint.
func (e *Endpoint) Stop(
	ctx context.Context, ref endpoint.Ref, signal string, grace time.Duration, reason string,
) (*endpoint.Record, error) {
	v, err := e.own(ctx, ref)
	if err != nil {
		return nil, err
	}
	switch r := e.record(v); r.State {
	case endpoint.Exited:
		return r, nil
	case endpoint.Starting:
		if v, err = e.stopUnstarted(ctx, ref, reason); err != nil {
			return nil, err
		}
		if v != nil {
			return e.record(v), nil
		}
	}
	if v, err = e.note(ctx, ref, reason); err != nil {
		return nil, err
	}
	if v.box.running() {
		if err := e.kill(ctx, v.box.id, signal); err == nil {
			if v, err = e.ended(ctx, ref, v.box.id, grace); err != nil {
				return nil, err
			}
		} else if unreached(err) {
			return nil, err
		} // it has ended, or the engine knows no such signal
	}
	if v.box.running() {
		if v, err = e.own(ctx, ref); err != nil {
			return nil, err
		}
		if v.box.running() {
			killed := e.kill(ctx, v.box.id, "SIGKILL")
			if v, err = e.ended(ctx, ref, v.box.id, killTime); err != nil {
				return nil, errors.Join(err, killed)
			}
			if v.box.running() {
				return nil, errors.Join(fmt.Errorf("the container runs %v after it was killed", killTime), killed)
			}
		}
	}
	return e.record(v), nil
}

// note stores the reason of a stop, which goes on without it: an engine with no space for that can stop what runs.
func (e *Endpoint) note(ctx context.Context, ref endpoint.Ref, reason string) (*view, error) {
	unlock, err := e.lock(ctx, ref.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	v, err := e.own(ctx, ref)
	if err != nil || !v.box.running() {
		return v, err
	}
	f := v.file
	f.Reason, f.Ran = reason, true
	if err := e.write(ctx, v.top, f); unreached(err) {
		return nil, err
	}
	return v, nil
}

// stopUnstarted ends an object whose program was never started. It returns no view if it runs after all.
func (e *Endpoint) stopUnstarted(ctx context.Context, ref endpoint.Ref, reason string) (*view, error) {
	unlock, err := e.lock(ctx, ref.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	v, err := e.own(ctx, ref)
	if err != nil || v.box.ran() {
		return nil, err
	}
	if v.box != nil {
		if err := e.remove(ctx, v.box.id); err != nil {
			if again, asked := e.own(ctx, ref); asked == nil && again.box.ran() {
				err = nil // a start came in between
			}
			return nil, err
		}
	}
	f := v.file
	f.Stopped, f.Reason = true, reason
	if err := e.write(ctx, v.top, f); err != nil {
		return nil, err
	}
	return e.own(ctx, ref)
}

// ended waits until a container does not run, or for this time. The view is that of the end.
func (e *Endpoint) ended(ctx context.Context, ref endpoint.Ref, id string, timeout time.Duration) (*view, error) {
	wake, forget := e.watches.add(ref.Name)
	defer forget()
	over := time.NewTimer(timeout)
	defer over.Stop()
	for poll := 5 * time.Millisecond; ; poll = min(2*poll, 500*time.Millisecond) {
		b, err := e.box(ctx, id)
		if err != nil && !cerrdefs.IsNotFound(err) {
			return nil, failed("wait for the container", err)
		}
		if !b.running() {
			return e.own(ctx, ref) // an owner whose claim was taken meanwhile is told so
		}
		select {
		case <-over.C:
			return e.own(ctx, ref)
		case <-wake:
		case <-time.After(poll):
		case <-ctx.Done():
			return nil, failed("wait for the container", ctx.Err())
		}
	}
}
