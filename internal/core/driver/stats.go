// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
)

// TaskStats is part of drivers.DriverPlugin. The first value is sent immediately, further ones once per interval. The
// channel is closed when the task or ctx ends.
func (d *Driver) TaskStats(
	ctx context.Context, id string, interval time.Duration,
) (<-chan *drivers.TaskResourceUsage, error) {
	h, err := d.handle(id)
	if err != nil {
		return nil, err
	}
	if interval <= 0 {
		// unrecoverable: after any other error, Nomad would repeat the call
		return nil, structs.NewRecoverableError(errors.New("statistics interval must be positive"), false)
	}
	if f, ok := h.task.(Forwarder); ok {
		return f.TaskStats(ctx, interval)
	}
	return d.sampling.add(ctx, h, interval), nil
}

// sample returns the engine's sample, or nil if none is available.
func (d *Driver) sample(ctx context.Context, h *handle) *drivers.TaskResourceUsage {
	t, ok := h.task.(Sampler)
	if !ok {
		return nil
	}
	u, err := t.Stats(ctx)
	if err != nil {
		d.logger.Warn("failed to read statistics", "task", h.config.ID, "error", err)
	}
	return u
}

// sampling takes the samples of all tasks in a single goroutine. This saves a goroutine per task, and measures a
// thousand tasks one after another instead of all at once.
type sampling struct {
	mu      sync.Mutex
	streams map[*statsStream]bool
	changed fingerprint.Kicker // a stream was added, or may be over
}

// statsStream is the stream that one call of TaskStats returns.
type statsStream struct {
	ctx      context.Context
	handle   *handle
	interval time.Duration
	due      time.Time                       // time of the next sample; zero before the first one
	out      chan *drivers.TaskResourceUsage // capacity 1: a slow reader misses samples
}

func newSampling() sampling {
	return sampling{streams: map[*statsStream]bool{}, changed: fingerprint.NewKicker()}
}

func (s *sampling) add(ctx context.Context, h *handle, interval time.Duration) <-chan *drivers.TaskResourceUsage {
	stream := &statsStream{ctx: ctx, handle: h, interval: interval, out: make(chan *drivers.TaskResourceUsage, 1)}
	s.mu.Lock()
	s.streams[stream] = true
	s.mu.Unlock()
	stop := h.task.AfterEnd(s.changed.Kick)
	context.AfterFunc(ctx, func() {
		stop()
		s.changed.Kick()
	})
	s.changed.Kick()
	return stream.out
}

// run takes samples until ctx ends.
func (s *sampling) run(ctx context.Context, sample func(context.Context, *handle) *drivers.TaskResourceUsage) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		next := time.Hour
		for _, stream := range s.all() {
			next = min(next, s.visit(stream, sample))
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-s.changed:
		case <-ctx.Done():
		}
	}
	for _, stream := range s.all() {
		close(stream.out)
	}
}

func (s *sampling) all() []*statsStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.streams))
}

// visit closes a stream that has ended, or takes a sample that is due. It returns the time until the next visit.
func (s *sampling) visit(
	stream *statsStream, sample func(context.Context, *handle) *drivers.TaskResourceUsage,
) (wait time.Duration) {
	over := stream.ctx.Err() != nil || !stream.due.IsZero() && stream.handle.hasEnded()
	if over {
		s.mu.Lock()
		delete(s.streams, stream)
		s.mu.Unlock()
		close(stream.out)
		return time.Hour
	}
	wait = time.Until(stream.due)
	if wait > 0 {
		return wait
	}
	stream.due = time.Now().Add(stream.interval)
	usage := sample(stream.ctx, stream.handle)
	if usage != nil {
		select {
		case stream.out <- usage:
		default:
		}
	}
	if stream.handle.hasEnded() { // visit again immediately, to close the stream
		return 0
	}
	return stream.interval
}
