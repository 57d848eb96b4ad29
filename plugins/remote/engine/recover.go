// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// How long Recover waits for an endpoint. The agent recovers one task after the other: if the
// endpoint could not be reached for another task within awayFor, the wait is short.
const (
	recoverTime  = 3 * time.Second
	recoverAgain = 100 * time.Millisecond
	awayFor      = time.Minute
)

// load makes a task of its saved state.
func (e *Engine) load(c *drivers.TaskConfig, state []byte, event driver.Event) (*remoteTask, error) {
	t := &remoteTask{engine: e, event: event, finishing: make(chan struct{}, 1)}
	if err := json.Unmarshal(state, &t.saved); err != nil {
		return nil, fmt.Errorf("failed to decode task: %w", err)
	}
	if t.saved.Owner.TaskID != c.ID || t.saved.Object.Name == "" {
		return nil, errors.New("its saved state is of another task")
	}
	t.saved.Asker.Token = c.Env[identityVariable]
	t.ref = t.saved.Object
	e.sees(t.run(), false)
	var err error
	t.ep, err = e.o.Endpoint(t.saved.Endpoint)
	return t, err
}

// recover follows the object again, if this start still owns it.
func (t *remoteTask) recover(ctx context.Context) error {
	e := t.engine
	patience := recoverTime
	e.mu.Lock()
	if time.Since(e.away[t.saved.Endpoint]) < awayFor {
		patience = recoverAgain
	}
	e.mu.Unlock()
	gctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := t.ep.Get(gctx, t.ref.Name)
	switch {
	case errors.Is(err, endpoint.ErrGone):
		return fmt.Errorf("its object %s is not at endpoint %s any more", t.ref.Name, t.saved.Endpoint)
	case err == nil && r.State != endpoint.Damaged && !t.isMine(r):
		t.yield(r)
		return fmt.Errorf("object %s of endpoint %s is not this allocation's any more: %s has taken it over",
			r.Name, t.saved.Endpoint, OwnerOf(r))
	}
	t.ctx, t.cancel = context.WithCancel(e.ctx)
	defer e.hold(t)
	switch {
	case err != nil:
		t.event("Endpoint %s can't be reached yet; the task is taken to go on there: %v", t.saved.Endpoint, err)
		e.mu.Lock()
		e.away[t.saved.Endpoint] = time.Now()
		e.mu.Unlock()
		t.attend()
	case r.State == endpoint.Damaged:
		t.see(r)
	case r.GivenUp:
		t.ref, t.record = r.Ref(), r
		t.event("This allocation has released object %s of endpoint %s: %s", r.Name, t.saved.Endpoint, r.Reason)
		t.endWith(&task.Exit{})
	default:
		t.begin(r)
	}
	return nil
}
