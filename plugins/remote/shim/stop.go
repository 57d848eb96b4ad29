// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// mostGrace bounds the time between a stop's signal and the kill.
const mostGrace = 24 * time.Hour

// signal is endpoint.Endpoint's Signal.
func (s *Shim) signal(ctx context.Context, ref endpoint.Ref, name string) error {
	sig, err := task.ParseSignal(name)
	if err != nil {
		return err
	}
	l, err := s.running(ctx, ref)
	if err != nil {
		return err
	}
	defer l.unlock()
	defer s.use(l.o.TaskID)()
	return s.client.Signal(ctx, l.o.TaskID, sig, task.KillProcess)
}

// running locks an object whose program runs, and has the supervisor know it.
func (s *Shim) running(ctx context.Context, ref endpoint.Ref) (*locked, error) {
	l, err := s.owned(ctx, ref)
	if err != nil {
		return nil, err
	}
	err = s.settle(ctx, l)
	if err == nil && l.o.State != endpoint.Running && l.o.State != endpoint.Released {
		err = fmt.Errorf("the task does not run: it is %s", l.o.State)
	}
	if err == nil {
		_, err = s.hold(ctx, l)
	}
	if err != nil {
		l.unlock()
		return nil, err
	}
	return l, nil
}

// use keeps what hold made of a task until the last user's release.
func (s *Shim) use(id string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[id]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.users[id]--; s.users[id] == 0 {
			delete(s.users, id)
			s.client.Forget(id)
		}
	}
}

// hold has this process's client know a program that runs. The channel is closed at its end.
func (s *Shim) hold(ctx context.Context, l *locked) (<-chan struct{}, error) {
	if ended, err := s.client.Exited(l.o.TaskID); err == nil {
		return ended, nil
	}
	st, err := s.taskState(l)
	if err != nil {
		return nil, err
	}
	if _, err := s.client.Adopt(ctx, st); err != nil {
		return nil, err
	}
	return s.client.Exited(l.o.TaskID)
}

// stop is endpoint.Endpoint's Stop. The lock is not held during the grace: who takes the object
// over meanwhile is the one that decides, and nothing is killed.
func (s *Shim) stop(ctx context.Context, ref endpoint.Ref, name string, grace time.Duration, reason string) (
	*endpoint.Record, error) {
	l, err := s.owned(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer func() { l.unlock() }()
	if err := s.settle(ctx, l); err != nil {
		return nil, err
	}
	if l.o.State == endpoint.Exited {
		return l.o.public(), nil
	}
	l.o.Reason = cmp.Or(reason, "stopped")
	if l.o.State == endpoint.Starting {
		s.finish(ctx, l, lost("its program was never run"))
		return l.o.public(), nil
	}
	sig, err := task.ParseSignal(cmp.Or(name, l.o.Kill.Signal, "SIGTERM"))
	if err != nil {
		s.cfg.Log("object %s: %v", ref.Name, err)
		sig = unix.SIGTERM
	}
	defer s.use(l.o.TaskID)()
	ended, err := s.hold(ctx, l)
	if err != nil {
		return nil, err
	}
	st, id, mode := l.o.Identity, l.o.TaskID, cmp.Or(l.o.KillMode, task.KillProcess)
	if grace = min(grace, mostGrace); grace > 0 && mode != task.KillProcess {
		l.o.Stopping = clockIn(grace)
	}
	if err := l.save(); err != nil { // a full disk is no reason to let it run
		s.cfg.Log("object %s: %v", ref.Name, err)
	}
	if grace > 0 {
		err := s.client.Signal(ctx, id, sig, mode)
		if err != nil && !errors.Is(err, supervisor.ErrEnded) && !errors.Is(err, supervisor.ErrUnknownTask) {
			s.cfg.Log("object %s: failed to signal it: %v", ref.Name, err)
		}
		l.unlock()
		err = s.waitForEnd(ctx, ref, ended, st, mode, time.Now().Add(grace))
		again, lerr := s.owned(ctx, ref)
		if lerr != nil {
			return nil, lerr
		}
		if l = again; err != nil {
			return nil, err
		}
	}
	return s.kill(ctx, l, ended)
}

// kill ends what still runs, and returns the record of the exit.
func (s *Shim) kill(ctx context.Context, l *locked, ended <-chan struct{}) (*endpoint.Record, error) {
	l.o.Stopping = clock{}
	if err := s.client.Kill(ctx, l.o.TaskID); err != nil && !errors.Is(err, supervisor.ErrUnknownTask) {
		return nil, fmt.Errorf("failed to kill the task: %w", err)
	}
	// the exit comes after the last output
	select {
	case <-ended:
	case <-time.After(time.Minute):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := s.settle(ctx, l); err != nil {
		return nil, err
	}
	if l.o.State != endpoint.Exited {
		return nil, errors.New("the task was killed, and has not ended")
	}
	return l.o.public(), nil
}

// waitForEnd waits for the end of the program, and of what else got the signal, until the
// deadline. The error is that of the context, or ErrEpoch.
func (s *Shim) waitForEnd(ctx context.Context, ref endpoint.Ref, ended <-chan struct{}, main task.Identity,
	mode task.KillMode, deadline time.Time) error {
	changed, stop := s.notify.watch(s.objectDir(ref.Name))
	defer stop()
	group := s.group(ref.Name)
	for time.Now().Before(deadline) {
		pause := min(time.Second, time.Until(deadline))
		select {
		case <-ended:
			if !(&task.State{Group: group, Identity: main}).SignalledLeft(mode) {
				return nil
			}
			pause = min(pause, 10*time.Millisecond)
		default:
		}
		over := ended
		if pause <= 10*time.Millisecond {
			over = nil
		}
		select {
		case <-over:
		case <-changed:
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		if o, err := readObject(s.objectDir(ref.Name)); err != nil {
			return err
		} else if !o.Is(ref) {
			return endpoint.ErrEpoch
		}
	}
	return nil
}
