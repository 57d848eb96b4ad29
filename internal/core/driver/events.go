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
	go func() { // ends when all pending events are delivered, or with ctx
		for _, e := range pending {
			d.emit(e)
		}
	}()
	return events, nil
}

// maxPending limits how many events are kept while Nomad does not listen.
const maxPending = 1000

// event reports a message about a task. The event is pending until the first WaitTask, because an
// agent that is recovering its tasks listens to events but drops them. While Nomad stops a task, the
// message becomes part of the exit message instead of an event, because Nomad may have dropped the
// allocation already (job stop -purge) and would then drop the event.
func (d *Driver) event(h *handle, format string, args ...any) {
	e := taskEvent(h.config, fmt.Sprintf(format, args...))
	h.mu.Lock()
	if h.stopped != nil {
		h.exitMessage = append(h.exitMessage, e.Message)
		late := h.exitSent
		h.mu.Unlock()
		if late {
			d.logger.Warn("event dropped because the task's exit is already delivered: "+e.Message, "task", e.TaskID)
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

// eventsOf returns a function that reports events of one task.
func (d *Driver) eventsOf(h *handle) Event {
	return func(format string, args ...any) { d.event(h, format, args...) }
}

// taskEvent returns an event for a task. It makes the message printable, because parts of it may come from the task.
func taskEvent(cfg *drivers.TaskConfig, message string) *drivers.TaskEvent {
	return &drivers.TaskEvent{
		TaskID: cfg.ID, TaskName: cfg.Name, AllocID: cfg.AllocID, Timestamp: time.Now(), Message: plain.Text(message),
	}
}

// flush emits the pending events of a task when Nomad begins to wait for it.
func (d *Driver) flush(h *handle) {
	h.mu.Lock()
	pending := h.pending
	h.waitedFor, h.pending = true, nil
	h.mu.Unlock()
	for _, e := range pending {
		h.delivered(d.emit(e))
	}
}

// These times limit how long the delivery of an exit waits for Nomad to take earlier events of the task and, after a
// start of the plugin, to listen to events. Nomad handles the events of all tasks one by one, and writes each to its
// disk.
const (
	deliveryTime = 100 * time.Millisecond // for a single event
	queuedTime   = 25 * time.Millisecond  // added for each event that was emitted shortly before
	maxQueueTime = 2 * time.Second        // limit of the added time
	listenTime   = time.Second
)

// waitDelivered gives Nomad time to take a task's events before it gets the exit. Events are sent separately from the
// exit, and Nomad drops events that arrive after the end of the allocation.
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

// emit sends an event to Nomad, or keeps it pending until Nomad listens. This is necessary because Nomad recovers tasks
// first after a start of the plugin, and the eventer drops events without a listener. The result is an estimate of when
// Nomad will have taken the event.
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
