// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/outrider-dev/outrider/internal/core/launch"
)

// Start is part of Engine.
func (l *local) Start(ctx context.Context, s *Start) (Task, error) {
	storeDir := filepath.Join(l.settings.Load().root, s.Task.NodeID)
	t := &localTask{engine: l, id: s.Task.ID, storeDir: storeDir, event: s.Event}
	notes, err := l.plan(ctx, s, t)
	if err != nil {
		return nil, err
	}
	run := runOf(s.Task.AllocID, s.Task.Name)
	over, err := l.onlyStart(ctx, run)
	if err != nil {
		return nil, fmt.Errorf("failed to start task: the agent that requested the start is gone: %w", err)
	}
	defer over()
	t.client = l.client(t.storeDir)
	// register the task before the launch, during which the supervisor may already report its events
	err = l.holdNew(t)
	if err != nil {
		return nil, err
	}
	st, err := t.client.Launch(l.ctx, t.state)
	if err != nil {
		l.release(t.id)
		return nil, recoverable(err)
	}
	t.watch(st)
	l.releaseEarlier(t.id, run)
	for _, note := range notes {
		s.Event("%s", note)
	}
	return t, nil
}

// recoverable marks err as recoverable if the same start may succeed later, for example when a device is plugged in
// again. The job's restart policy then applies.
func recoverable(err error) error {
	var e *launch.Error
	if errors.As(err, &e) && e.Temporary {
		return structs.NewRecoverableError(err, true)
	}
	return err
}

func runOf(alloc, name string) string { return alloc + "/" + name }

// onlyStart waits until no other start of the run is in progress. It returns an error if ctx has ended or ends during
// the wait. Of two calls for the same run, the later call comes from the agent that is alive, and must launch last.
func (l *local) onlyStart(ctx context.Context, run string) (over func(), err error) {
	for {
		l.mu.Lock()
		if err := ctx.Err(); err != nil {
			l.mu.Unlock()
			return nil, err
		}
		other := l.starts[run]
		if other == nil {
			mine := make(chan struct{})
			l.starts[run] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.starts, run)
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
		}
	}
}

// releaseEarlier drops this process's records of earlier runs of a task that has just started. The supervisor has
// either removed such a run, or returned it as the started run, under its new id.
func (l *local) releaseEarlier(id, run string) {
	var earlier []*localTask
	l.mu.Lock()
	for other, t := range l.tasks {
		if st := t.current(); other != id && runOf(st.AllocID, st.Task) == run {
			earlier = append(earlier, t)
			delete(l.tasks, other)
		}
	}
	l.mu.Unlock()
	for _, t := range earlier {
		t.abandon()
	}
}
