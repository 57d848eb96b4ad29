// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

// TaskEvents is part of drivers.DriverPlugin.
func (d *Driver) TaskEvents(ctx context.Context) (<-chan *drivers.TaskEvent, error) {
	events, err := d.eventer.TaskEvents(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.listeners++
	pending := d.pending
	d.pending = nil
	d.mu.Unlock()
	context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.listeners--
	})
	go func() { // ends when they are taken, or with ctx
		for _, e := range pending {
			d.emit(e)
		}
	}()
	return events, nil
}

// maxPending bounds the pending events of a Nomad that does not listen.
const maxPending = 1000

// event reports a sentence about a task. It is pending until Nomad waits for the task
// for the first time: while an agent recovers its tasks it listens to events already,
// and drops them. While Nomad stops a task, it may have dropped the allocation before
// (job stop -purge): then the sentence is part of the exit message, which needs no
// event of ours.
func (d *Driver) event(h *handle, format string, args ...any) {
	e := taskEvent(h.config, fmt.Sprintf(format, args...))
	h.mu.Lock()
	if h.stopped != nil {
		h.exitMessage = append(h.exitMessage, e.Message)
		late := h.exitSent
		h.mu.Unlock()
		if late {
			d.logger.Warn("too late for the task's events: "+e.Message, "task", e.TaskID)
		}
		return
	}
	pending := !h.waitedFor
	if pending {
		h.pending = append(h.pending, e)
	}
	h.mu.Unlock()
	if !pending {
		h.delivered(d.emit(e))
	}
}

// eventsOf is event for one task.
func (d *Driver) eventsOf(h *handle) Event {
	return func(format string, args ...any) { d.event(h, format, args...) }
}

// taskEvent returns an event. A task may have chosen parts of its message.
func taskEvent(cfg *drivers.TaskConfig, message string) *drivers.TaskEvent {
	return &drivers.TaskEvent{
		TaskID: cfg.ID, TaskName: cfg.Name, AllocID: cfg.AllocID, Timestamp: time.Now(), Message: plain.Text(message),
	}
}

// flush emits the pending events of a task, for which Nomad waits now.
func (d *Driver) flush(h *handle) {
	h.mu.Lock()
	pending := h.pending
	h.waitedFor, h.pending = true, nil
	h.mu.Unlock()
	for _, e := range pending {
		h.delivered(d.emit(e))
	}
}

// How long an exit waits for the events before it, and after a start of the plugin
// for Nomad to listen to any. Nomad takes the events of all tasks one by one, and
// writes each to its disk.
const (
	deliveryTime = 100 * time.Millisecond // for a single event
	queuedTime   = 25 * time.Millisecond  // more for each that was emitted shortly before it
	maxQueueTime = 2 * time.Second        // and for all of these at most
	listenTime   = time.Second
)

// waitDelivered gives Nomad the time to take a task's events: they travel apart from
// the exit, and Nomad drops those that come after the end of an allocation.
func (d *Driver) waitDelivered(ctx context.Context, h *handle) {
	h.mu.Lock()
	by, stopped := h.deliveredBy, h.stopped
	h.mu.Unlock()
	if time.Now().After(by) || stopped != nil {
		return
	}
	for end := time.Now().Add(listenTime); !d.hasListeners(); time.Sleep(10 * time.Millisecond) {
		if !h.recovered || time.Now().After(end) || ctx.Err() != nil {
			return
		}
		by = time.Now().Add(deliveryTime)
	}
	select {
	case <-time.After(time.Until(by)):
	case <-ctx.Done():
	}
}

func (d *Driver) hasListeners() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listeners > 0
}

// emit sends an event to Nomad, or keeps it pending until Nomad listens: after a start
// of the plugin it recovers tasks before it does, and the eventer drops events without
// a listener. It returns when Nomad will have taken it, as far as can be known.
func (d *Driver) emit(e *drivers.TaskEvent) (deliveredBy time.Time) {
	now := time.Now()
	d.mu.Lock()
	if d.listeners == 0 {
		if len(d.pending) < maxPending {
			d.pending = append(d.pending, e)
		}
		d.mu.Unlock()
		return now.Add(deliveryTime)
	}
	deliveredBy = now.Add(deliveryTime)
	if next := d.deliveredBy.Add(queuedTime); next.After(deliveredBy) {
		deliveredBy = next
	}
	if latest := now.Add(deliveryTime + maxQueueTime); deliveredBy.After(latest) {
		deliveredBy = latest
	}
	d.deliveredBy = deliveredBy
	d.mu.Unlock()
	if err := d.eventer.EmitEvent(e); err != nil {
		d.logger.Warn("failed to emit task event", "task", e.TaskID, "error", err)
	}
	return deliveredBy
}
