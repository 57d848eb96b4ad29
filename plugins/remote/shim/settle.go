// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// seemsSettled reports whether a look at the kernel is enough: the program runs, and the record
// says so.
func (s *Shim) seemsSettled(o *stored) bool {
	if o.Stopping.left() > 0 {
		return true
	}
	switch o.State {
	case endpoint.Starting:
		_, err := os.Lstat(s.store.TaskDir(o.TaskID))
		return err != nil
	case endpoint.Running, endpoint.Released:
		return s.store.LoadExit(o.TaskID) == nil && alive(o.Identity)
	}
	return true
}

func alive(id task.Identity) bool {
	st, err := task.ReadStat(id.PID)
	return err == nil && id.Alive() && !st.Zombie
}

// settle makes a record say what has become of its program: after a shim was killed between the
// program and the record, and after the program has ended. An error means that it is unknown now.
func (s *Shim) settle(ctx context.Context, l *locked) error {
	o := l.o
	if s.seemsSettled(o) {
		return nil
	}
	if e := s.store.LoadExit(o.TaskID); e != nil {
		if st, err := s.store.Load(o.TaskID); err == nil && o.State == endpoint.Starting {
			o.ran(st, l.plan())
		}
		s.finish(ctx, l, e)
		return nil
	}
	st, err := s.taskState(l)
	if err != nil {
		// what describes a program does not outlive the kernel that ran it (task.Store)
		if o.State == endpoint.Starting && o.Changed.Boot != "" && o.Changed.Boot != task.BootID() {
			s.finish(ctx, l, lost("the host was restarted while it was started"))
			return nil
		}
		if o.State != endpoint.Starting && o.Identity.BootID != task.BootID() {
			s.finish(ctx, l, lost("the host was restarted while it ran"))
			return nil
		}
		if o.State != endpoint.Starting && !alive(o.Identity) {
			s.finish(ctx, l, lost("it has ended, and what was recorded of it is gone"))
			return nil
		}
		return err
	}
	defer s.use(o.TaskID)()
	status, err := s.client.Adopt(ctx, st)
	switch {
	case errors.Is(err, supervisor.ErrUnknownTask) && o.State == endpoint.Starting:
		return nil // the supervisor was killed before the program ran
	case errors.Is(err, supervisor.ErrUnknownTask):
		s.finish(ctx, l, lost("its supervisor does not know of it"))
		return nil
	case err != nil:
		return err
	case status.Exit != nil:
		if o.State == endpoint.Starting && status.State != nil {
			o.ran(status.State, l.plan())
		}
		s.finish(ctx, l, status.Exit)
		return nil
	case status.Running && o.State == endpoint.Starting && status.State != nil:
		o.ran(status.State, l.plan())
		return l.save()
	}
	return nil
}

// taskState is the supervisor's state of a task, or our copy of it.
func (s *Shim) taskState(l *locked) (*task.State, error) {
	st, err := s.store.Load(l.o.TaskID)
	if err == nil {
		return st, nil
	}
	p := l.plan()
	if p.State == nil || p.State.ID != l.o.TaskID {
		return nil, fmt.Errorf("the state of the object's program can't be read: %w", err)
	}
	p.State.Identity = l.o.Identity
	return p.State, nil
}

// plan is what an object was prepared with, empty if that can't be read.
func (l *locked) plan() *plan {
	p := &plan{}
	b, err := os.ReadFile(filepath.Join(l.path, planFile))
	if err == nil {
		err = json.Unmarshal(b, p)
	}
	if err != nil {
		return &plan{}
	}
	return p
}

// ran notes that the program runs.
func (o *stored) ran(st *task.State, p *plan) {
	o.KillMode, o.Ports = p.KillMode, p.Ports
	missing := p.Limits
	if missing == "" && st.Group.Mode == cgroup.None && st.Limits != (cgroup.Limits{}) {
		missing = "not enforced: the host could not make a cgroup for the task" // cgroup.ErrUnavailable
	}
	if missing != "" {
		o.More = map[string]string{"limits": missing}
	}
	o.change()
	o.State = endpoint.Running
	o.Identity, o.PID = st.Identity, st.Identity.PID
	o.Started = o.Since
}

func lost(reason string) *task.Exit { return &task.Exit{Lost: true, Reason: reason, At: time.Now()} }

// finishTime is how long what is left of a program may take to end.
const finishTime = time.Minute

// finish ends what is left of a program that has ended, and records the exit. If the disk is
// full the caller has it nevertheless, and the next one finds it again.
func (s *Shim) finish(ctx context.Context, l *locked, e *task.Exit) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
	defer cancel()
	if st, err := s.store.Load(l.o.TaskID); err == nil {
		if empty, err := st.Group.Empty(); err != nil || !empty {
			if err := s.client.Kill(ctx, l.o.TaskID); err != nil && !errors.Is(err, supervisor.ErrUnknownTask) {
				s.cfg.Log("object %s: what is left of it can't be ended: %v", l.o.Name, err)
			}
		}
	}
	l.o.change()
	l.o.State, l.o.Exit = endpoint.Exited, e
	if err := l.save(); err != nil {
		s.cfg.Log("object %s: its exit can't be recorded yet: %v", l.o.Name, err)
	}
}
