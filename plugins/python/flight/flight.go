// Package flight has one do what several want at the same time, while the others wait. Unlike
// golang.org/x/sync/singleflight it knows contexts: who waits may give up, and who has given up fails nobody else.
package flight

import (
	"context"
	"errors"
	"sync"
)

// Group is what is under way, by a key. The zero value is ready for use. It is safe for concurrent use.
type Group struct {
	mu    sync.Mutex
	calls map[string]*call
}

// call is one of do. Who makes it closes done, after setting err.
type call struct {
	done chan struct{}
	err  error
}

// Do calls do and returns its error (led), unless it is being called for the same key: then it asks wait whether
// to wait until that has returned, if not until ctx ends, and returns the error of that.
//
// Without an error who did not lead has to look at what there is now: it may be what was wanted, or nothing where the
// ctx of who led was cancelled, since its error is no one else's.
func (g *Group) Do(ctx context.Context, key string, wait func() bool, do func() error) (led bool, err error) {
	g.mu.Lock()
	if c := g.calls[key]; c != nil {
		g.mu.Unlock()
		if !wait() {
			return false, nil
		}
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
	return true, do()
}
