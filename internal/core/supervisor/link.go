package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// errLinkLost: the supervisor went away with the call under way.
var errLinkLost = errors.New("connection to the supervisor was lost")

// link is one connection to a supervisor.
type link struct {
	*conn
	mu      sync.Mutex
	seq     uint64
	pending map[uint64]chan *reply
	lost    bool
}

// roundTrip sends a request and waits for its reply. A context that ends first
// gives up waiting; the request itself goes on.
func (l *link) roundTrip(ctx context.Context, req *request, fds ...int) (*reply, error) {
	answer := make(chan *reply, 1)
	l.mu.Lock()
	if l.lost {
		l.mu.Unlock()
		return nil, errLinkLost
	}
	l.seq++
	mine := *req
	mine.Seq = l.seq
	l.pending[mine.Seq] = answer
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.pending, mine.Seq)
		l.mu.Unlock()
	}()
	if err := l.send(&mine, fds...); err != nil {
		l.Close()
		return nil, errLinkLost
	}
	select {
	case r, ok := <-answer:
		if !ok {
			return nil, errLinkLost
		}
		return r, r.Error.err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// listen reads what the supervisor says until the connection ends, and then sees
// to it that the tasks are watched again.
func (c *Client) listen(l *link) {
	for {
		var r reply
		if l.receive(&r) != nil {
			break
		}
		switch {
		case r.Event != nil:
			c.cfg.OnEvent(*r.Event)
		case r.Seq == 0 && r.Exit != nil:
			c.ended(r.ID, r.Exit)
		default:
			l.mu.Lock()
			if answer := l.pending[r.Seq]; answer != nil {
				delete(l.pending, r.Seq)
				answer <- &r
			}
			l.mu.Unlock()
		}
	}
	c.drop(l) // first: who is told that it is lost calls again at once
	l.mu.Lock()
	l.lost = true
	for seq, answer := range l.pending {
		close(answer)
		delete(l.pending, seq)
	}
	l.mu.Unlock()
	l.shut()

	c.mu.Lock()
	for id, s := range c.sessions { // they died with the connection
		if s.link == l {
			close(s.ended)
			delete(c.sessions, id)
		}
	}
	running := c.running()
	c.mu.Unlock()
	if running > 0 && c.ctx.Err() == nil {
		c.cfg.Log("supervisor is gone while %d tasks run: starting another", running)
		c.rewatch()
	}
}

// drop makes the next call dial anew.
func (c *Client) drop(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.link = nil
	}
}

// rewatch gets a supervisor for tasks that lost theirs. Nobody may be waiting in
// a call that would notice a failure, so it tries until it succeeds.
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

// connect returns the connection, made anew if need be: with a supervisor that
// runs this client's build and knows all of this client's tasks.
func (c *Client) connect(ctx context.Context) (*link, error) {
	c.dialing.Lock()
	defer c.dialing.Unlock()
	c.mu.Lock()
	l := c.link
	c.lastUse = time.Now()
	c.mu.Unlock()
	if l != nil {
		return l, nil
	}
	l, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.link = l
	var held []*hold
	for _, h := range c.holds {
		if h.exit == nil && h.state.Identity.PID != 0 {
			held = append(held, h)
		}
	}
	c.mu.Unlock()
	c.handOver(ctx, l, held)
	go c.hangUpWhenIdle(l)
	return l, nil
}

// handOver makes a supervisor know tasks. What it does not take now (its disk is
// full, say) it is asked to take again, for as long as the connection lasts.
func (c *Client) handOver(ctx context.Context, l *link, held []*hold) {
	var failed []*hold
	for _, h := range held {
		_, err := c.adoptOver(ctx, l, h, &request{Op: opAdopt, State: h.state})
		switch {
		case errors.Is(err, ErrUnknownTask):
			c.ended(h.state.ID, lost("its supervisor was killed before the program ran"))
		case errors.Is(err, errLinkLost):
			return // the next supervisor gets them
		case err != nil:
			c.cfg.Log("failed to hand task %s to the supervisor: %v", h.state.ID, err)
			failed = append(failed, h)
		}
	}
	if len(failed) > 0 {
		time.AfterFunc(time.Second, func() {
			c.mu.Lock()
			var left []*hold
			for _, h := range failed {
				if c.link == l && c.holds[h.state.ID] == h && h.exit == nil {
					left = append(left, h)
				}
			}
			c.mu.Unlock()
			if len(left) > 0 && c.ctx.Err() == nil {
				c.handOver(c.ctx, l, left)
			}
		})
	}
}

// dial reaches a supervisor, started or upgraded if need be.
func (c *Client) dial(ctx context.Context) (*link, error) {
	var last error
	deadline := time.Now().Add(10 * time.Second)
	for try := 0; (try < 3 || time.Now().Before(deadline)) && ctx.Err() == nil; try++ {
		if try > 0 {
			time.Sleep(5 * time.Millisecond)
		}
		nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.cfg.Store.Socket(), Net: "unix"})
		if err != nil {
			if last = c.startSupervisor(ctx); last != nil && !errors.Is(last, errDiedStarting) {
				return nil, last
			}
			continue
		}
		l := &link{conn: newConn(nc), pending: map[uint64]chan *reply{}}
		go c.listen(l)
		r, err := l.roundTrip(ctx, &request{Op: opHello})
		if err != nil || r.Hello == nil {
			last = errors.Join(errors.New("supervisor did not greet"), err)
			l.Close()
			continue // it was just ending
		}
		if c.upgraded || r.Hello.Build == buildID() {
			c.upgraded = true
			return l, nil
		}
		last = c.upgradeSupervisor(ctx, l)
		if last != nil && r.Hello.Protocol == protocolVersion {
			// an older one that speaks our language will do until the next time
			c.cfg.Log("supervisor was not upgraded: %v", last)
			c.upgraded = true
			return l, nil
		}
		l.Close()
	}
	if last == nil {
		last = ctx.Err()
	}
	return nil, fmt.Errorf("failed to reach the supervisor: %w", last)
}

// upgradeSupervisor hands the running supervisor this client's binary. It
// returns nil when the supervisor has replaced itself; the connection is over then.
func (c *Client) upgradeSupervisor(ctx context.Context, l *link) error {
	binary, err := openBinary()
	if err != nil {
		return err
	}
	defer binary.Close()
	req := &request{Op: opUpgrade, Build: buildID(), FDs: 1}
	_, err = l.roundTrip(ctx, req, int(binary.Fd()))
	if errors.Is(err, errLinkLost) {
		c.upgraded = true
		c.cfg.Log("supervisor was upgraded in place")
		return nil
	}
	return err
}

// hangUpWhenIdle lets the supervisor go when there is no task to talk about.
func (c *Client) hangUpWhenIdle(l *link) {
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-time.After(c.cfg.Idle / 2):
		}
		c.mu.Lock()
		stale := c.link != l
		l.mu.Lock()
		idle := len(c.holds) == 0 && len(c.sessions) == 0 && len(l.pending) == 0 && time.Since(c.lastUse) > c.cfg.Idle
		l.mu.Unlock()
		if idle && !stale {
			c.link = nil // a call from now on dials anew
		}
		c.mu.Unlock()
		if stale {
			return
		}
		if idle {
			l.Close()
			return
		}
	}
}
