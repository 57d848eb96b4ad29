// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// TaskStats is part of drivers.DriverPlugin: a value at once, then one an
// interval, until the task has ended or ctx has.
func (d *Driver) TaskStats(
	ctx context.Context, id string, interval time.Duration,
) (<-chan *drivers.TaskResourceUsage, error) {
	h, err := d.handle(id)
	if err != nil {
		return nil, err
	}
	if interval <= 0 {
		// Recoverable is what Nomad tells errors apart by; this one is not
		return nil, structs.NewRecoverableError(errors.New("interval of statistics is not positive"), false)
	}
	if f, ok := h.task.(Forwarder); ok {
		return f.TaskStats(ctx, interval)
	}
	usages := make(chan *drivers.TaskResourceUsage)
	go func() {
		defer close(usages)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			var u *drivers.TaskResourceUsage
			d.sampling.run(func() { u = d.sample(ctx, h) })
			if u != nil {
				select {
				case usages <- u:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-tick.C:
			case <-h.task.Ended():
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return usages, nil
}

// sample is the engine's with the driver's own statistics, nil if there is none now.
func (d *Driver) sample(ctx context.Context, h *handle) *drivers.TaskResourceUsage {
	t, ok := h.task.(Sampler)
	if !ok {
		return nil
	}
	u, err := t.Stats(ctx)
	if err != nil {
		d.logger.Warn("failed to read statistics", "task", h.config.ID, "error", err)
	}
	if i, ok := optional[StatsReporter](d); ok && u != nil {
		if err := i.ReportStats(ctx, h.run(), u); err != nil {
			d.logger.Warn("failed to read the driver's own statistics", "task", h.config.ID, "error", err)
		}
	}
	return u
}

// worker is one goroutine that does the work of many: their stacks stay small,
// and a thousand tasks are not measured all at the same time.
type worker struct {
	ctx  context.Context
	work chan func()
}

// newWorker starts the goroutine; ctx ends it.
func newWorker(ctx context.Context) worker {
	w := worker{ctx: ctx, work: make(chan func())}
	go func() {
		for {
			select {
			case f := <-w.work:
				f()
			case <-ctx.Done():
				return
			}
		}
	}()
	return w
}

// run returns when f has, or without it when the worker has ended.
func (w worker) run(f func()) {
	done := make(chan struct{})
	select {
	case w.work <- func() { defer close(done); f() }:
		<-done
	case <-w.ctx.Done():
	}
}
