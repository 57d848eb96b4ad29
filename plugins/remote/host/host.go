// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package host is the node's connection to the shim on a host.
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

// Config describes a host.
type Config struct {
	Name     string            // name of the endpoint
	SSH      ssh.Config        // the way to log in
	Programs map[string]string // the paths of this plugin's program, by architecture
	Options  shim.Options      // options for the host's shim; an empty Dir means the host's default

	Event func(*drivers.TaskEvent) // called for each task event of the host
}

// Host has at most one connection at a time. After the first Connect or Keep, it reconnects after each loss. It is safe
// for concurrent use.
type Host struct {
	config Config
	ctx    context.Context
	cancel context.CancelFunc
	begin  sync.Once // starts the goroutine keep
	keeps  sync.WaitGroup

	mu      sync.Mutex
	link    *Link         // nil if not connected
	problem error         // error of the last attempt to connect; nil during an attempt
	changed chan struct{} // closed when link or problem changes
}

// New returns a host that is not connected.
func New(c Config) *Host {
	h := &Host{config: c, changed: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Close ends the connection, or the attempt to connect. Tasks keep running.
func (h *Host) Close() {
	h.cancel()
	h.keeps.Wait()
}

// The pause between two attempts to connect. It doubles after each failure.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 15 * time.Second
)

// attemptTime limits an attempt to connect. The first attempt also copies the program, which is about 40 MB.
const attemptTime = 10 * time.Minute

// shortLife is the minimum lifetime of a connection. If it is lost sooner, that counts as a failed attempt to connect.
const shortLife = 15 * time.Second

// Connect returns the connection. During an attempt to connect, it waits for the result. Between two attempts, it
// returns the error of the previous one. If ctx ends, Connect stops waiting, but the attempt continues for others.
func (h *Host) Connect(ctx context.Context) (*Link, error) { return h.wait(ctx, false) }

// Keep is like Connect, but keeps waiting after a failed attempt, until ctx ends.
func (h *Host) Keep(ctx context.Context) (*Link, error) { return h.wait(ctx, true) }

func (h *Host) wait(ctx context.Context, keep bool) (*Link, error) {
	h.begin.Do(func() { h.keeps.Go(h.keep) })
	for {
		h.mu.Lock()
		link, problem, changed := h.link, h.problem, h.changed
		h.mu.Unlock()
		if link != nil && !link.over() {
			return link, nil
		}
		if h.ctx.Err() != nil {
			return nil, errors.New("the plugin is shutting down")
		}
		if problem != nil && !keep {
			return nil, problem
		}
		select {
		case <-changed:
		case <-h.ctx.Done():
		case <-ctx.Done():
			return nil, fmt.Errorf("not connected to endpoint %q yet: %w", h.config.Name, ctx.Err())
		}
	}
}

// Connected returns the connection, or nil if none exists.
func (h *Host) Connected() *Link {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link == nil || h.link.over() {
		return nil
	}
	return h.link
}

// keep connects, and reconnects after each loss, until Close is called.
func (h *Host) keep() {
	pause := firstPause
	for h.ctx.Err() == nil {
		h.set(nil, nil)
		link, err := h.connect()
		if err == nil {
			begun := time.Now()
			h.set(link, nil)
			<-link.conn.Context().Done()
			link.close() // waits until ssh has ended
			if time.Since(begun) > shortLife {
				pause = firstPause
				continue
			}
			err = fmt.Errorf("the connection to endpoint %q was lost", h.config.Name)
		}
		h.set(nil, err)
		select {
		case <-time.After(pause/2 + rand.N(pause/2)): //nolint:gosec // not a secret
		case <-h.ctx.Done():
		}
		pause = min(2*pause, longestPause)
	}
}

func (h *Host) set(link *Link, problem error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.link, h.problem = link, problem
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *Host) connect() (*Link, error) {
	ctx, cancel := context.WithCancelCause(h.ctx) // ctx outlives this call: when it ends, so does the connection
	limit := time.AfterFunc(attemptTime, func() { cancel(fmt.Errorf("connecting took more than %v", attemptTime)) })
	defer limit.Stop()
	link, err := newLink(ctx, h.config)
	if err != nil {
		cancel(err)
		return nil, fmt.Errorf("endpoint %q can't be used: %w", h.config.Name, err)
	}
	context.AfterFunc(link.conn.Context(), func() { cancel(nil) })
	link.Address = addressOf(ctx, h.config.SSH.Host)
	return link, nil
}

// addressOf returns the IP address of a name, or "" if this node cannot resolve it, as for a host behind a jump host.
func addressOf(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil || len(addresses) == 0 {
		return ""
	}
	return addresses[0].Unmap().String()
}
