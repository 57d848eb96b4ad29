// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// helloTime is how long a supervisor may take to answer a hello request. The answer waits for nothing, so a supervisor
// that takes longer hangs. The client kills and replaces it.
const helloTime = 10 * time.Second

// helloEvery is the interval between hello requests while tasks run or a call is in progress.
const helloEvery = time.Second

// deadlines has the time limit for each kind of request. The limits are longer than the supervisor's own. If a
// supervisor answers hello but not another request, it has a bug, and the caller gets an error.
var deadlines = map[string]time.Duration{
	opHello:   helloTime,
	opLaunch:  startTimeout + openTime + 30*time.Second,
	opAdopt:   30 * time.Second,
	opSignal:  20 * time.Second,
	opKill:    2*killTimeout + 10*time.Second,
	opDestroy: 4*killTimeout + endTime + 10*time.Second,
	opExec:    startTimeout + 30*time.Second,
	opUpgrade: 20 * time.Second,
}

type connection = wire.Conn[reply]

// roundTrip sends a request and waits for its reply. If ctx ends first, roundTrip stops waiting, but the
// supervisor still carries out the request.
func roundTrip(ctx context.Context, conn *connection, req *request, files ...*os.File) (*reply, error) {
	limited, cancel := context.WithTimeout(ctx, deadlines[req.Op])
	defer cancel()
	r, err := conn.Call(limited, req, files...)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, fmt.Errorf("supervisor did not finish request %q within %v", req.Op, deadlines[req.Op])
	}
	if err != nil {
		return nil, err
	}
	return &r.Body, r.Body.Error.err()
}

// tend watches a connection until it ends. While tasks run or a call is in progress, tend sends hello requests, and
// replaces a supervisor that does not answer. It counts its own ticks as time, because a clock also counts the time for
// which this process is stopped. When no task is left, tend closes the connection, so that the supervisor can end.
func (c *Client) tend(conn *connection) {
	look := min(100*time.Millisecond, c.cfg.Idle/2)
	tick := time.NewTicker(look)
	defer tick.Stop()
	silent, received, used := 0, conn.Received(), time.Now()
	for ; c.wire.Current() == conn && c.ctx.Err() == nil; <-tick.C {
		calls, now := conn.Pending(), conn.Received()
		c.mu.Lock()
		needed := calls > 0 || c.running() > 0
		inUse := calls > 0 || len(c.holds) > 0 || len(c.sessions) > 0
		c.mu.Unlock()
		if inUse || now != received {
			used = time.Now()
		} else if time.Since(used) > c.cfg.Idle {
			conn.Close() // if a task has been started just now, the client reconnects
			return
		}
		if now != received || !needed {
			silent, received = 0, now
		}
		silent++
		if silent == int(helloEvery/look) {
			go func() { _, _ = roundTrip(c.ctx, conn, &request{Op: opHello}) }()
		}
		if silent > int((helloEvery+c.cfg.helloTime)/look) {
			c.cfg.Log("supervisor has not answered for %v: replacing it", c.cfg.helloTime)
			c.replace(conn)
			return
		}
	}
	conn.Close() // needed if the connection was opened after Client.Close
}

// replace kills the supervisor of a connection. The next call starts another.
func (c *Client) replace(conn *connection) {
	process, err := conn.KillPeer()
	if err != nil && !errors.Is(err, wire.ErrPeerGone) {
		c.cfg.Log("failed to kill the supervisor: %v", err)
	}
	if process != nil {
		// the supervisor's death releases the lock; only a hang of the store, which has all its files, can delay that
		task.Dead(int(process.Fd()), helloTime)
		process.Close()
	}
	conn.Close()
}

// received handles the messages that the supervisor sends without a request: events and exits.
func (c *Client) received(r reply) {
	switch {
	case r.Event != nil:
		c.cfg.OnEvent(*r.Event)
	case r.Exit != nil:
		c.ended(r.ID, r.Exit)
	}
}

// lost closes the channels of the exec sessions, which have ended with the connection.
func (c *Client) lost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, ended := range c.sessions {
		close(ended)
		delete(c.sessions, id)
	}
	if running := c.running(); running > 0 && c.ctx.Err() == nil && c.moved == "" {
		c.cfg.Log("supervisor is gone while %d tasks run: starting another", running)
	}
}

// needed reports whether tasks are running, which need a new supervisor if the current one is lost.
func (c *Client) needed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running() > 0 && c.ctx.Err() == nil
}

// running counts the held tasks that have not ended. The caller holds mu.
func (c *Client) running() int {
	n := 0
	for _, h := range c.holds {
		if h.exit == nil {
			n++
		}
	}
	return n
}

// handOverTime bounds how long a new connection waits until all tasks are handed over.
const handOverTime = time.Second

// handOverLimit bounds how many tasks are handed over concurrently.
const handOverLimit = 16

// handOver hands all running tasks to the supervisor of a new connection. It waits at most handOverTime for the
// answers, because a file system may hang. Even then the supervisor knows the tasks, as it registers them early.
func (c *Client) handOver(conn *connection) {
	go c.tend(conn)
	var all sync.WaitGroup
	places := make(semaphore, handOverLimit)
	c.mu.Lock()
	for _, h := range c.holds {
		if h.exit == nil && h.state.Identity.PID != 0 {
			all.Go(func() { c.handOverTask(conn, h, places) })
		}
	}
	c.mu.Unlock()
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		all.Wait()
	}()
	select {
	case <-handed:
	case <-time.After(handOverTime):
	}
}

// handOverTask hands over one task. If the supervisor can't take the task now (for example, on a full disk),
// handOverTask retries for as long as the connection lasts and the client holds the task.
func (c *Client) handOverTask(conn *connection, h *hold, places semaphore) {
	for c.wire.Current() == conn && c.ctx.Err() == nil {
		places.acquire()
		c.mu.Lock()
		over := h.exit != nil // also set for a destroyed task, which an adoption would recreate
		c.mu.Unlock()
		var err error
		if !over {
			_, err = c.adoptOver(c.ctx, conn, h)
		}
		places.release()
		switch {
		case err == nil, errors.Is(err, wire.ErrLost): // ErrLost: the next supervisor gets the task
			return
		case errors.Is(err, ErrUnknownTask):
			c.ended(h.state.ID, lost("its supervisor was killed before the program ran"))
			return
		}
		c.cfg.Log("failed to hand task %s to the supervisor: %v", h.state.ID, err)
		time.Sleep(time.Second)
	}
}

// dialOwn connects to the supervisor of a store. A launch request contains the secrets of a task, so dialOwn ensures
// that only root and this user can create the socket, and that one of the two is at the other end.
func dialOwn(store task.Store) (*wire.Transport, error) {
	if err := owndir.Check(store.Dir); err != nil {
		return nil, err
	}
	return wire.Dial(store.Socket())
}

// dialTime is how long dial keeps trying to reach a supervisor. An attempt fails if that supervisor is about to end.
const dialTime = 30 * time.Second

// dial connects to the supervisor, and starts or upgrades it if necessary.
func (c *Client) dial(ctx context.Context) (*connection, error) {
	var last error
	deadline := time.Now().Add(dialTime)
	for try := 0; (try < 3 || time.Now().Before(deadline)) && ctx.Err() == nil && c.ctx.Err() == nil; try++ {
		if try > 0 {
			time.Sleep(5 * time.Millisecond)
		}
		t, err := dialOwn(c.cfg.Store)
		if err != nil {
			last = c.startSupervisor(ctx)
			if last != nil && !errors.Is(last, errDiedStarting) {
				return nil, last
			}
			continue
		}
		conn := c.wire.Open(t)
		greeting, cancel := context.WithTimeout(ctx, c.cfg.helloTime)
		r, err := roundTrip(greeting, conn, &request{Op: opHello})
		cancel()
		if err != nil || r.Hello == nil {
			last = errors.Join(errors.New("supervisor did not answer the hello request"), err)
			// ErrLost: the supervisor was about to end. Otherwise it hangs, or its hello is that of a protocol before 3.
			if !errors.Is(err, wire.ErrLost) && ctx.Err() == nil {
				c.replace(conn)
			}
			conn.Close()
			continue
		}
		c.reportMove()
		if c.accepts(r.Hello) {
			return conn, nil
		}
		last = c.move(ctx, conn, r.Hello)
		if last != nil && r.Hello.Protocol == protocolVersion {
			// this supervisor can serve the running tasks; the next start of a task tries again to move it
			c.refused(r.Hello, last)
			return conn, nil
		}
		conn.Close()
	}
	if last == nil {
		last = cmp.Or(ctx.Err(), c.ctx.Err(), fmt.Errorf("no supervisor answered within %v", dialTime))
	}
	return nil, fmt.Errorf("failed to reach the supervisor: %w", last)
}
