// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"time"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// lookEvery is how often what is waited for is looked at, should the kernel not tell.
const lookEvery = 5 * time.Second

// watch is endpoint.Endpoint's Watch. While it waits this process is a client of the supervisor:
// one that is killed is replaced, and no exit is lost.
func (s *Shim) watch(ctx context.Context, ref endpoint.Ref) (*endpoint.Record, error) {
	changed, stop := s.notify.watch(s.objectDir(ref.Name))
	defer stop()
	release := func() {}
	defer func() { release() }()
	for held := false; ; {
		o, err := s.look(ctx, ref.Name)
		if errors.Is(err, errDamaged) {
			return damaged(ref.Name, err), nil
		}
		if err != nil {
			return nil, err
		}
		if o.State == endpoint.Exited || !o.Is(ref) {
			return o.public(), nil
		}
		var ended <-chan struct{}
		if o.State == endpoint.Running || o.State == endpoint.Released {
			if !held {
				held, release = true, s.use(o.TaskID)
			}
			ended = s.attend(ctx, o)
		}
		pause := lookEvery
		if left := o.Stopping.left(); left > 0 { // the end of the main process alone changes nothing before then
			ended, pause = nil, min(pause, left)
		}
		select {
		case <-ended:
			time.Sleep(time.Millisecond) // the exit may be on its way to the disk
		case <-changed:
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// attend is hold for one that has no lock, nil if the program can't be held now.
func (s *Shim) attend(ctx context.Context, o *stored) <-chan struct{} {
	ended, err := s.client.Exited(o.TaskID)
	if err == nil {
		return ended
	}
	if ended, err = s.hold(ctx, &locked{path: s.objectDir(o.Name), o: o}); err != nil {
		s.cfg.Log("object %s: %v", o.Name, err)
		return nil
	}
	return ended
}
