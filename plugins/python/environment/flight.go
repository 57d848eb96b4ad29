// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"errors"
	"sync"
)

// flight has one caller do what several want at the same time, while the others wait. Unlike
// golang.org/x/sync/singleflight it reports the wait before it begins, lets a waiting caller give up, and keeps the
// others from failing with a caller that gave up. The zero value is ready for use.
type flight struct {
	mu    sync.Mutex
	calls map[string]*call
}

// call is one of do. The caller that makes it closes done, after setting err.
type call struct {
	done chan struct{}
	err  error
}

// do calls f and returns its error (led), unless it is being called for the same key: then it calls waiting, waits
// until f has returned or ctx ends, and returns the error.
//
// Without an error a caller that did not lead has to look at what there is now: it may be what was wanted, or nothing
// where the leader was cancelled, since that error is of no other caller.
func (g *flight) do(ctx context.Context, key string, waiting func(), f func() error) (led bool, err error) {
	g.mu.Lock()
	if c := g.calls[key]; c != nil {
		g.mu.Unlock()
		waiting()
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-c.done:
			return false, c.err
		}
	}
	c := &call{done: make(chan struct{})}
	if g.calls == nil {
		g.calls = map[string]*call{}
	}
	g.calls[key] = c
	g.mu.Unlock()
	defer func() {
		if !errors.Is(ctx.Err(), context.Canceled) {
			c.err = err
		}
		g.mu.Lock()
		delete(g.calls, key)
		g.mu.Unlock()
		close(c.done)
	}()
	return true, f()
}
