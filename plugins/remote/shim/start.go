// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// startTime bounds a start. The supervisor's own limits are below it.
const startTime = 3 * time.Minute

// prepare is endpoint.Endpoint's Prepare: it makes the directories, for the user of the task.
func (s *Shim) prepare(ctx context.Context, ref endpoint.Ref, spec *endpoint.Spec) error {
	l, err := s.owned(ctx, ref)
	if err != nil {
		return err
	}
	defer l.unlock()
	if err := s.settle(ctx, l); err != nil {
		return err
	}
	if l.o.State != endpoint.Starting {
		return nil
	}
	p, err := s.plan(l, spec)
	if err != nil {
		return err
	}
	if err := s.destroy(ctx, l.o.TaskID); err != nil {
		return err
	}
	if err := s.reach(p.State.Command.User); err != nil {
		return err
	}
	if err := s.dirs(l.o).renew(p.State.Command.User); err != nil {
		return err
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := writeFile(l.path, planFile, b, false); err != nil {
		return fmt.Errorf("failed to save how the task runs: %w", err)
	}
	return nil
}

// start is endpoint.Endpoint's Start. The supervisor starts an id once: a start that was cut off
// at any point can be made again.
func (s *Shim) start(ctx context.Context, ref endpoint.Ref, spec *endpoint.Spec) (*endpoint.Record, error) {
	l, err := s.owned(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer l.unlock()
	if err := s.settle(ctx, l); err != nil {
		return nil, err
	}
	if l.o.State != endpoint.Starting {
		return l.o.public(), nil
	}
	p, err := s.plan(l, spec)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	prepared, err := os.ReadFile(filepath.Join(l.path, planFile))
	if err != nil || !bytes.Equal(b, prepared) {
		return nil, endpoint.ErrUnprepared
	}
	// not the caller's: a program that was asked for is started, and then told
	launching, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTime)
	defer cancel()
	st, err := s.client.Launch(launching, p.State)
	var failed *launch.Error
	switch {
	case errors.As(err, &failed):
		return nil, err
	case launching.Err() != nil:
		return nil, fmt.Errorf("%w: the start takes too long", endpoint.ErrUnreachable)
	case err != nil:
		if err2 := s.destroy(launching, l.o.TaskID); err2 != nil {
			return nil, fmt.Errorf("%w: %w, %w", endpoint.ErrUnreachable, err, err2)
		}
		return nil, err
	}
	l.o.ran(st, p)
	if err := l.save(); err != nil {
		s.cfg.Log("object %s: its start can't be recorded yet: %v", ref.Name, err)
	}
	if e := s.client.Exit(l.o.TaskID); e != nil {
		s.finish(launching, l, e)
	}
	return l.o.public(), nil
}
