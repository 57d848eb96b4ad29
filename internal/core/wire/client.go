// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wire

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ErrLost means that the connection ended during the call. It is unknown whether the call was
// carried out.
var ErrLost = errors.New("connection was lost")

// Client keeps a connection to a process that may exit and be replaced at any time. Replies and
// events have type R. A Client is safe for concurrent use.
type Client[R any] struct {
	// Dial must return a connection from Open, and start the process if necessary. It is not called concurrently.
	Dial func(ctx context.Context) (*Conn[R], error)

	// Opened, if set, is called with each new connection before Connect returns it.
	Opened func(*Conn[R])

	// Lost, if set, is called when the current connection has ended, before another one is opened. It must not call the
	// Client, whose mutex is held.
	Lost func()

	// Event is called with each event, from one goroutine per connection.
	Event func(R)

	// Needed reports whether to replace a lost connection immediately instead of at the next call.
	Needed func() bool

	// WriteTime limits how long Call may take to send a request. If sending takes longer, Call closes the connection.
	WriteTime time.Duration

	// Log receives messages for the operator.
	Log func(format string, args ...any)

	dialing sync.Mutex
	mu      sync.Mutex // lock order: before Conn.mu
	conn    *Conn[R]
}

// Open returns a connection over a transport, and begins to receive. Closing the connection closes the transport.
func (c *Client[R]) Open(t *Transport) *Conn[R] {
	conn := &Conn[R]{
		Transport: t, writeTime: c.WriteTime, pending: map[uint64]chan Message[R]{}, lost: make(chan struct{}),
	}
	go func() {
		conn.receive(c.Event)
		c.mu.Lock()
		conn.lose()
		inUse := c.conn == conn
		if inUse { // with mu locked: a caller that gets ErrLost calls Connect, which must not return this Conn
			c.conn = nil
			if c.Lost != nil {
				c.Lost()
			}
		}
		c.mu.Unlock()
		conn.Shut()
		if inUse {
			c.reconnect()
		}
	}()
	return conn
}

// Current returns the current connection, or nil.
func (c *Client[R]) Current() *Conn[R] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// Connect returns the current connection, or opens one.
func (c *Client[R]) Connect(ctx context.Context) (*Conn[R], error) {
	c.dialing.Lock()
	defer c.dialing.Unlock()
	if conn := c.Current(); conn != nil {
		return conn, nil
	}
	conn, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if conn.isLost() {
		c.mu.Unlock()
		return nil, ErrLost
	}
	c.conn = conn
	c.mu.Unlock()
	if c.Opened != nil {
		c.Opened(conn)
	}
	return conn, nil
}

// Repeat calls the function do with a connection. If the connection is lost during the call, Repeat calls the function
// again with a new connection, up to four times in all.
func (c *Client[R]) Repeat(ctx context.Context, do func(*Conn[R]) error) error {
	for try := 0; ; try++ {
		conn, err := c.Connect(ctx)
		if err == nil {
			err = do(conn)
		}
		if !errors.Is(err, ErrLost) || try >= 3 {
			return err
		}
	}
}

// reconnect replaces a lost connection. It retries until it succeeds or the connection is no longer
// needed, since there may be no call that could report a failure.
func (c *Client[R]) reconnect() {
	for wait := 10 * time.Millisecond; c.Needed(); wait = min(2*wait, 5*time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, err := c.Connect(ctx)
		cancel()
		if err == nil {
			return
		}
		c.Log("failed to reconnect: %v", err)
		time.Sleep(wait)
	}
}

// Conn is the client's side of a connection. It matches replies to calls by sequence number. It is
// safe for concurrent use.
type Conn[R any] struct {
	*Transport
	writeTime time.Duration
	received  atomic.Int64

	mu      sync.Mutex
	last    uint64
	pending map[uint64]chan Message[R]
	lost    chan struct{} // closed when the connection has ended
}

// Call sends a request and waits for its reply. The error is ErrLost or the error of ctx. If ctx
// ends first, Call stops waiting; the request is still carried out.
func (c *Conn[R]) Call(ctx context.Context, body any, files ...*os.File) (r Message[R], err error) {
	answer := make(chan Message[R], 1)
	c.mu.Lock()
	if c.isLost() {
		c.mu.Unlock()
		return r, ErrLost
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
	_ = c.SetWriteDeadline(time.Now().Add(c.writeTime))
	if send(c.Transport, Message[any]{Seq: seq, Body: body, Files: files}) != nil {
		c.Close() // this makes receive fail; the goroutine started by Open then calls lose
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

// Received returns the number of received messages.
func (c *Conn[R]) Received() int64 { return c.received.Load() }

// Pending returns the number of calls that wait for a reply.
func (c *Conn[R]) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}

// receive delivers replies and events until the connection has ended.
func (c *Conn[R]) receive(event func(R)) {
	for {
		m, err := receive[R](c.Transport)
		if err != nil {
			return
		}
		c.received.Add(1)
		if m.Seq == 0 {
			event(m.Body)
		} else if !c.answer(m) {
			CloseAll(m.Files)
		}
	}
}

// answer delivers a reply. It returns false if no call waits for the reply.
func (c *Conn[R]) answer(m Message[R]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := c.pending[m.Seq]
	if answer == nil {
		return false
	}
	delete(c.pending, m.Seq)
	answer <- m
	return true
}

// lose ends all current and future calls with ErrLost.
func (c *Conn[R]) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.lost)
	for seq, answer := range c.pending {
		close(answer)
		delete(c.pending, seq)
	}
}

func (c *Conn[R]) isLost() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}
