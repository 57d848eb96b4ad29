// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package host is the node's side of a host that tasks run on: the connection to its shim.
package host

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/plugins/remote/shim"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

// Config is a host.
type Config struct {
	Name     string            // the endpoint's
	SSH      ssh.Config        // how it is reached
	Programs map[string]string // the paths of this plugin's program, by architecture
	Options  shim.Options      // of its shim; an empty Dir is the host's default

	Event func(*drivers.TaskEvent) // is called with what the host says of tasks
}

// Host has at most one connection at a time. Its methods may be called concurrently.
type Host struct {
	config Config
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	link     *Link         // the last one, nil before the first
	attempt  chan struct{} // closed at its end; nil: none is under way
	failures int           // since the last success
	last     error         // of the last attempt
	next     time.Time
}

// New returns a host that is not connected.
func New(c Config) *Host {
	h := &Host{config: c}
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	return h
}

// Close ends the connection. Tasks go on.
func (h *Host) Close() error {
	h.cancel(errClosed)
	h.mu.Lock()
	link := h.link
	h.mu.Unlock()
	if link != nil {
		link.close()
	}
	return nil
}

// The times between two attempts to connect.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 15 * time.Second
)

// attemptTime is how long an attempt may take: the program has some 40 MB, which are copied once.
const attemptTime = 10 * time.Minute

var errClosed = errors.New("the plugin ends")

// Connect returns the connection, and makes one where there is none. For some time after a failed attempt it returns
// that one's error. The context ends the wait; the attempt goes on, for all callers.
func (h *Host) Connect(ctx context.Context) (*Link, error) {
	h.mu.Lock()
	if h.connected() == nil && h.attempt == nil && !time.Now().Before(h.next) {
		h.attempt = make(chan struct{})
		go h.try()
	}
	done := h.attempt
	h.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
			return nil, fmt.Errorf("there is no connection to endpoint %q yet: %w", h.config.Name, ctx.Err())
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if link := h.connected(); link != nil {
		return link, nil
	}
	return nil, h.last
}

// try makes an attempt.
func (h *Host) try() {
	ctx, cancel := context.WithCancelCause(h.ctx) // ends the connection, also later
	limit := time.AfterFunc(attemptTime, func() { cancel(fmt.Errorf("it took more than %v", attemptTime)) })
	link, err := newLink(ctx, h.config)
	if err == nil {
		link.Address = addressOf(ctx, h.config.SSH.Host)
	}
	limit.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.attempt)
	h.attempt = nil
	if err != nil {
		cancel(err)
		h.failed(fmt.Errorf("endpoint %q can't be used: %w", h.config.Name, err))
		return
	}
	h.link = link
	h.last = fmt.Errorf("the connection to endpoint %q was lost", h.config.Name) // when it is
	begun := time.Now()
	context.AfterFunc(link.conn.Context(), func() {
		cancel(nil)
		h.mu.Lock()
		defer h.mu.Unlock()
		if time.Since(begun) < shortLife {
			h.failed(h.last)
			return
		}
		h.failures = 0
	})
}

// addressOf returns the IP address of a name, empty where this node knows none, as behind a jump host.
func addressOf(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil || len(addresses) == 0 {
		return ""
	}
	return addresses[0].Unmap().String()
}

const lookupTime = 5 * time.Second

// failed puts the next attempt off. The caller holds the lock.
func (h *Host) failed(err error) {
	pause := min(firstPause<<min(h.failures, 10), longestPause)
	h.failures++
	h.last, h.next = err, time.Now().Add(pause/2+rand.N(pause/2)) //nolint:gosec // not a secret
}

// shortLife is how long a connection lives that counts as a failed attempt.
const shortLife = 15 * time.Second

// connected is the connection, nil if there is none. The caller holds the lock.
func (h *Host) connected() *Link {
	if h.link == nil || h.link.over() {
		return nil
	}
	return h.link
}

// Keep returns the connection as soon as there is one, however long that takes. The context ends the wait.
func (h *Host) Keep(ctx context.Context) (*Link, error) {
	for {
		link, err := h.Connect(ctx)
		if err == nil || h.ctx.Err() != nil || ctx.Err() != nil {
			return link, err
		}
		h.mu.Lock()
		pause := max(time.Until(h.next), firstPause/10)
		h.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Connected returns the connection if there is one, else nil.
func (h *Host) Connected() *Link {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.connected()
}
