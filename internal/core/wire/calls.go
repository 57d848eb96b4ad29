// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wire

import (
	"context"
	"errors"
	"sync"
)

// ErrLost means that the connection ended with the call under way. Whether the call was
// carried out is not known.
var ErrLost = errors.New("connection was lost")

// Calls matches replies of type R to the requests that they answer, by number.
// It is safe for concurrent use; the zero value is ready.
type Calls[R any] struct {
	mu      sync.Mutex
	last    uint64
	pending map[uint64]chan R
	lost    bool
}

// Do calls send with the number of a new request and waits for the reply to that. The
// error is that of send or of ctx, or ErrLost. If ctx ends first, the call gives up
// waiting, and the request itself goes on.
func (c *Calls[R]) Do(ctx context.Context, send func(seq uint64) error) (r R, err error) {
	answer := make(chan R, 1)
	c.mu.Lock()
	if c.lost {
		c.mu.Unlock()
		return r, ErrLost
	}
	if c.pending == nil {
		c.pending = map[uint64]chan R{}
	}
	c.last++
	seq := c.last
	c.pending[seq] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pending, seq)
	}()
	if err := send(seq); err != nil {
		return r, err
	}
	select {
	case r, ok := <-answer:
		if !ok {
			return r, ErrLost
		}
		return r, nil
	case <-ctx.Done():
		return r, ctx.Err()
	}
}

// Answer delivers a reply. It returns false if no call waits for it any more.
func (c *Calls[R]) Answer(seq uint64, r R) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := c.pending[seq]
	if answer == nil {
		return false
	}
	delete(c.pending, seq)
	answer <- r
	return true
}

// Lose ends all calls, and those to come, with ErrLost.
func (c *Calls[R]) Lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
	for seq, answer := range c.pending {
		close(answer)
		delete(c.pending, seq)
	}
}

// Pending is how many calls wait.
func (c *Calls[R]) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}
