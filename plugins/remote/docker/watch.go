// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Watch is part of endpoint.Endpoint.
func (e *Endpoint) Watch(ctx context.Context, ref endpoint.Ref) (*endpoint.Record, error) {
	wake, forget := e.watches.add(ref.Name)
	defer forget()
	for {
		r, err := e.Get(ctx, ref.Name)
		if err != nil {
			return nil, err
		}
		if r.State == endpoint.Exited || !r.Is(ref) {
			return r, nil
		}
		select {
		case <-wake:
		case <-time.After(e.watches.period()):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// hub reads the engine's events for all that wait for one.
type hub struct {
	endpoint *Endpoint

	mu     sync.Mutex
	waits  map[string]map[chan struct{}]bool // by name of the object
	stop   context.CancelFunc                // of follow; nil: it does not run
	ended  chan struct{}
	closed bool
	listen bool // events arrive
}

// The times between two looks at an object for which no event came: an engine may forget one, or have none.
const (
	pollWith    = 30 * time.Second
	pollWithout = 2 * time.Second
)

func (h *hub) period() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listen {
		return pollWith
	}
	return pollWithout
}

// add returns a channel that has a value after an event of an object. forget has to be called.
func (h *hub) add(name string) (wake <-chan struct{}, forget func()) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waits == nil {
		h.waits = map[string]map[chan struct{}]bool{}
	}
	if h.waits[name] == nil {
		h.waits[name] = map[chan struct{}]bool{}
	}
	h.waits[name][c] = true
	if h.stop == nil && !h.closed {
		var ctx context.Context
		ctx, h.stop = context.WithCancel(context.Background())
		h.ended = make(chan struct{})
		go h.follow(ctx)
	}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if delete(h.waits[name], c); len(h.waits[name]) == 0 {
			delete(h.waits, name)
		}
	}
}

func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	stop, ended := h.stop, h.ended
	h.mu.Unlock()
	if stop != nil {
		stop()
		<-ended
	}
}

// follow reads events until close.
func (h *hub) follow(ctx context.Context) {
	defer close(h.ended)
	for ctx.Err() == nil {
		h.read(ctx)
		h.hear(false)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// read reads until there is an error.
func (h *hub) read(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := h.endpoint.api.Events(ctx, client.EventsListOptions{Filters: client.Filters{}.
		Add("type", "container").Add("label", labelPlugin+"="+labelValue).
		Add("event", "create", "start", "die", "died", "destroy", "remove", "oom"),
	})
	// it has returned when the engine has answered, Podman at its first event only
	select {
	case <-r.Err:
		return
	default:
	}
	h.hear(true)
	for {
		select {
		case m := <-r.Messages:
			h.wake(m.Actor.Attributes[labelObject])
		case <-r.Err:
			return
		}
	}
}

// hear is told whether events arrive. What came before is unknown.
func (h *hub) hear(listen bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listen = listen
	for name := range h.waits {
		h.wakeLocked(name)
	}
}

func (h *hub) wake(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wakeLocked(name)
}

func (h *hub) wakeLocked(name string) {
	for c := range h.waits[name] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
