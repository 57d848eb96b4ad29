// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// helloTime is how long a supervisor may take to answer a hello, which it does without
// waiting for anything. One that takes longer is killed, and replaced.
const helloTime = 10 * time.Second

// helloEvery is how often it is asked while tasks run, or a call is under way.
const helloEvery = time.Second

// deadlines are how long each kind of call may take. They are above what the
// supervisor gives itself for it; one that answers hello, but not the call, has a
// fault, and the caller gets an error.
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

// link is one connection to a supervisor.
type connection struct {
	*wire.Transport
	calls     wire.Calls[*reply]
	received  atomic.Int64 // how many messages
	gone      bool         // under the client's mu: it has ended
	upgrading atomic.Bool  // it has been asked to replace itself, which ends the connection
}

// roundTrip sends a request and waits for its reply. A context that ends first
// gives up waiting; the request itself goes on.
func (conn *connection) roundTrip(ctx context.Context, req *request, files ...*os.File) (*reply, error) {
	limited, cancel := context.WithTimeout(ctx, deadlines[req.Op])
	defer cancel()
	r, err := conn.calls.Do(limited, func(seq uint64) error {
		mine := *req
		mine.Seq, mine.FDs = seq, len(files)
		_ = conn.SetWriteDeadline(time.Now().Add(2 * helloTime)) // one that does not read: watch acts earlier
		if conn.Send(&mine, files...) != nil {
			conn.Close()
			return wire.ErrLost
		}
		return nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, fmt.Errorf("supervisor did not finish within %v: %s", deadlines[req.Op], req.Op)
	}
	if err != nil {
		return nil, err
	}
	return r, r.Error.err()
}

// watch sends hellos to the supervisor for as long as the connection lasts, and kills one
// that does not answer. Time is counted in ticks and not by the clock: while this process
// stands still, too, the supervisor is not late.
func (c *Client) watch(conn *connection) {
	const look = 100 * time.Millisecond
	silent, heard := 0, conn.received.Load()
	for tick := time.NewTicker(look); ; <-tick.C {
		c.mu.Lock()
		gone := c.connection != conn || c.ctx.Err() != nil
		needed := c.running() > 0
		c.mu.Unlock()
		if gone {
			tick.Stop()
			return
		}
		if now := conn.received.Load(); now != heard || !needed && conn.calls.Pending() == 0 {
			silent, heard = 0, now
		}
		if silent++; silent == int(helloEvery/look) {
			go func() { _, _ = conn.roundTrip(c.ctx, &request{Op: opHello}) }()
		}
		if silent > int((helloEvery+c.cfg.helloTime)/look) {
			tick.Stop()
			c.cfg.Log("supervisor has not answered for %v: replacing it", c.cfg.helloTime)
			c.replace(conn)
			return
		}
	}
}

// replace kills the supervisor of a connection. The next call starts another.
func (c *Client) replace(conn *connection) {
	process, err := conn.KillPeer()
	if err != nil && !errors.Is(err, wire.ErrPeerGone) {
		c.cfg.Log("failed to kill the supervisor: %v", err)
	}
	if process != nil {
		// its lock goes with it: it touches nothing that can hang but its own directory
		task.Dead(int(process.Fd()), helloTime)
		process.Close()
	}
	conn.Close()
}

// listen reads messages until the connection ends, and then gets the tasks another
// supervisor.
func (c *Client) listen(conn *connection) {
	for {
		var r reply
		if conn.Receive(&r) != nil {
			break
		}
		conn.received.Add(1)
		switch {
		case r.Event != nil:
			c.cfg.OnEvent(*r.Event)
		case r.Seq == 0 && r.Exit != nil:
			c.ended(r.ID, r.Exit)
		default:
			conn.calls.Answer(r.Seq, &r)
		}
	}
	c.drop(conn) // first: a caller that gets ErrLost calls again at once
	conn.calls.Lose()
	conn.Shut()

	c.mu.Lock()
	for id, s := range c.sessions { // they died with the connection
		if s.connection == conn {
			close(s.ended)
			delete(c.sessions, id)
		}
	}
	running := c.running()
	c.mu.Unlock()
	if running > 0 && c.ctx.Err() == nil {
		if !conn.upgrading.Load() {
			c.cfg.Log("supervisor is gone while %d tasks run: starting another", running)
		}
		c.rewatch()
	}
}

// drop makes the next call dial again.
func (c *Client) drop(conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.gone = true
	if c.connection == conn {
		c.connection = nil
	}
}

// rewatch gets a supervisor for tasks that lost theirs. There may be no call that would
// report a failure, so it retries until it succeeds.
func (c *Client) rewatch() {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		if _, err := c.connect(c.ctx); err == nil || c.ctx.Err() != nil {
			return
		} else {
			c.cfg.Log("failed to reach a supervisor: %v", err)
		}
		select {
		case <-time.After(wait):
		case <-c.ctx.Done():
		}
	}
}

// running counts the held tasks that have not ended. c.mu is held.
func (c *Client) running() int {
	n := 0
	for _, h := range c.holds {
		if h.exit == nil {
			n++
		}
	}
	return n
}

// connect returns the connection, a new one if need be: to a supervisor that runs this
// client's build and knows all of this client's tasks.
func (c *Client) connect(ctx context.Context) (*connection, error) {
	c.dialing.Lock()
	defer c.dialing.Unlock()
	c.mu.Lock()
	conn := c.connection
	c.lastUse = time.Now()
	c.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if conn.gone {
		c.mu.Unlock()
		return nil, wire.ErrLost
	}
	c.connection = conn
	var held []*hold
	for _, h := range c.holds {
		if h.exit == nil && h.state.Identity.PID != 0 {
			held = append(held, h)
		}
	}
	c.mu.Unlock()
	go c.watch(conn)
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		c.handOver(conn, held)
	}()
	select { // also if files hang: the supervisor knows the task long before it answers
	case <-handed:
	case <-time.After(handOverTime):
	}
	go c.hangUpWhenIdle(conn)
	return conn, nil
}

// handOverTime is how long a new connection waits for the supervisor to have all tasks.
const handOverTime = time.Second

// handOverLimit is how many tasks are handed over at once.
const handOverLimit = 16

// handOver makes a supervisor know tasks. It retries those that the supervisor can't take
// now (its disk is full, say) for as long as the connection lasts.
func (c *Client) handOver(conn *connection, held []*hold) {
	var mu sync.Mutex
	var failed []*hold
	var all sync.WaitGroup
	places := make(semaphore, handOverLimit)
	for _, h := range held {
		places.acquire()
		all.Go(func() {
			defer places.release()
			_, err := c.adoptOver(c.ctx, conn, h)
			switch {
			case err == nil, errors.Is(err, wire.ErrLost): // the next supervisor gets them
			case errors.Is(err, ErrUnknownTask):
				c.ended(h.state.ID, lost("its supervisor was killed before the program ran"))
			default:
				c.cfg.Log("failed to hand task %s to the supervisor: %v", h.state.ID, err)
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, h)
			}
		})
	}
	all.Wait()
	if len(failed) > 0 {
		time.AfterFunc(time.Second, func() {
			c.mu.Lock()
			var left []*hold
			for _, h := range failed {
				if c.connection == conn && c.holds[h.state.ID] == h && h.exit == nil {
					left = append(left, h)
				}
			}
			c.mu.Unlock()
			if len(left) > 0 && c.ctx.Err() == nil {
				c.handOver(conn, left)
			}
		})
	}
}

// dialOwn connects to the supervisor of a store. Only root and this user can have put
// the socket where it is, and one of the two must be at its other end: a launch request
// contains the secrets of a task.
func dialOwn(store task.Store) (*wire.Transport, error) {
	if err := owndir.Check(store.Dir); err != nil {
		return nil, err
	}
	return wire.Dial(store.Socket())
}

// dialTime bounds the search for a supervisor: each one found may just be ending.
const dialTime = 30 * time.Second

// dial reaches a supervisor, started or upgraded if need be.
func (c *Client) dial(ctx context.Context) (*connection, error) {
	var last error
	var old *hello // of a supervisor that got this binary
	deadline := time.Now().Add(dialTime)
	for try := 0; (try < 3 || time.Now().Before(deadline)) && ctx.Err() == nil; try++ {
		if try > 0 {
			time.Sleep(5 * time.Millisecond)
		}
		t, err := dialOwn(c.cfg.Store)
		if err != nil {
			if last = c.startSupervisor(ctx); last != nil && !errors.Is(last, errDiedStarting) {
				return nil, last
			}
			continue
		}
		conn := &connection{Transport: t}
		go c.listen(conn)
		greeting, cancel := context.WithTimeout(ctx, c.cfg.helloTime)
		r, err := conn.roundTrip(greeting, &request{Op: opHello})
		cancel()
		if err != nil || r.Hello == nil {
			last = errors.Join(errors.New("supervisor did not answer hello"), err)
			if err != nil && !errors.Is(err, wire.ErrLost) && ctx.Err() == nil {
				c.replace(conn)
			}
			conn.Close()
			continue // it was just ending
		}
		if old != nil {
			c.logReplaced(old, r.Hello)
		}
		if c.upgraded || r.Hello.Build == buildID() {
			c.upgraded = true
			return conn, nil
		}
		if last = c.upgradeSupervisor(ctx, conn); last == nil {
			old = r.Hello
		}
		if last != nil && r.Hello.Protocol == protocolVersion {
			// an older one that speaks this protocol is good enough until the next time
			c.cfg.Log("supervisor was not upgraded: %v", last)
			c.upgraded = true
			return conn, nil
		}
		conn.Close()
	}
	if last == nil {
		last = ctx.Err()
	}
	if last == nil {
		last = fmt.Errorf("none answered within %v", dialTime)
	}
	return nil, fmt.Errorf("failed to reach the supervisor: %w", last)
}

// upgradeSupervisor hands the running supervisor this client's binary. It
// returns nil when the supervisor has replaced itself; the connection is over then.
func (c *Client) upgradeSupervisor(ctx context.Context, conn *connection) error {
	binary, err := openBinary()
	if err != nil {
		return err
	}
	defer binary.Close()
	conn.upgrading.Store(true)
	_, err = conn.roundTrip(ctx, &request{Op: opUpgrade, Build: buildID()}, binary)
	if errors.Is(err, wire.ErrLost) {
		c.upgraded = true
		return nil
	}
	conn.upgrading.Store(false)
	return err
}

// logReplaced logs the outcome of an upgrade: the supervisor that answers now has the same
// pid and this plugin's build, or the old one ended, and another one was started.
func (c *Client) logReplaced(old, now *hello) {
	if now.PID == old.PID && now.Build == buildID() {
		c.cfg.Log("replaced the supervisor of another version (pid %d, build %s) by this plugin's (build %s); its tasks "+
			"go on",
			old.PID, old.Build, now.Build)
		return
	}
	c.cfg.Log("supervisor %d of another version (build %s) ended during its upgrade: another one was started (pid %d, "+
		"build %s)",
		old.PID, old.Build, now.PID, now.Build)
}

// hangUpWhenIdle closes the connection when there is no task left, so that the supervisor
// may end.
func (c *Client) hangUpWhenIdle(conn *connection) {
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-time.After(c.cfg.Idle / 2):
		}
		c.mu.Lock()
		stale := c.connection != conn
		idle := len(c.holds) == 0 && len(c.sessions) == 0 && conn.calls.Pending() == 0 && time.Since(c.lastUse) > c.cfg.Idle
		if idle && !stale {
			c.connection = nil // the next call dials again
		}
		c.mu.Unlock()
		if stale {
			return
		}
		if idle {
			conn.Close()
			return
		}
	}
}
