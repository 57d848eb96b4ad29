// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// Config is what a Client needs to know.
type Config struct {
	// Store is the directory that the plugin and its supervisor share.
	Store task.Store

	// Leaf is the cgroup for a supervisor that this client starts; mode None where
	// there is none to be had.
	Leaf cgroup.Group

	// Idle is how long a supervisor stays without task and client, and how long
	// the client stays connected without task; 0 means 10 s.
	Idle time.Duration

	// OnEvent is called, from one goroutine, with each event for the user of a task.
	OnEvent func(Event)

	// OnExit is called, from one goroutine, for each launched or adopted task that
	// has ended.
	OnExit func(id string, e *task.Exit)

	// Log receives messages for the operator.
	Log func(format string, args ...any)

	helloTime time.Duration // shorter in tests
}

// Client is the plugin's side of the protocol. It is safe for concurrent use. It starts a
// supervisor when one is needed, and another one if that was killed; it repeats the calls
// that were under way, so that callers do not notice.
//
// For each running task it holds a pidfd, so that the exit status is not lost while
// no supervisor lives. A supervisor that does not answer is killed, and its tasks are
// adopted by another: no call waits for longer than its deadline.
type Client struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc

	wire *wire.Client[reply]

	leafing sync.Mutex // held while the leaf is made and entered, and while it is removed

	mu       sync.Mutex
	settled  bool   // the supervisor was seen to have this process's build and surroundings
	other    *hello // of one that has refused them for now
	moved    string // what was done to the last one, for the log
	killed   int    // the pid of one that was killed since it can't take them over
	holds    map[string]*hold
	sessions map[string]chan *task.Exit // commands that run in tasks for as long as the connection lasts
}

// hold is what a client keeps of a task between its start and its destruction.
type hold struct {
	state *task.State
	pidfd *os.File
	exit  *task.Exit
	done  chan struct{}
}

// NewClient returns a client; nothing runs before its first call.
func NewClient(cfg Config) *Client {
	if cfg.Idle == 0 {
		cfg.Idle = 10 * time.Second
	}
	if cfg.helloTime == 0 {
		cfg.helloTime = helloTime
	}
	if cfg.OnEvent == nil {
		cfg.OnEvent = func(Event) {}
	}
	if cfg.OnExit == nil {
		cfg.OnExit = func(string, *task.Exit) {}
	}
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	c := &Client{cfg: cfg, holds: map[string]*hold{}, sessions: map[string]chan *task.Exit{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.wire = &wire.Client[reply]{
		Dial: c.dial, Opened: c.handOver, Lost: c.lost, Event: c.received, Needed: c.needed, Log: cfg.Log,
		WriteTime: 2 * helloTime, // for a supervisor that does not read; tend acts earlier
	}
	return c
}

// Close ends the connection. Tasks and supervisor go on.
func (c *Client) Close() {
	c.cancel()
	if conn := c.wire.Current(); conn != nil {
		conn.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, h := range c.holds {
		h.release()
		delete(c.holds, id)
	}
}

// Launch starts a task and returns its state with the identity of its process,
// once the program itself runs. A *launch.Error says why a program could not be
// started; nothing is left of it then.
func (c *Client) Launch(ctx context.Context, st *task.State) (*task.State, error) {
	c.mu.Lock()
	h := &hold{state: st, done: make(chan struct{})}
	c.holds[st.ID] = h // before the launch: the exit may arrive before the reply
	c.mu.Unlock()
	err := c.settle(ctx)
	var r *reply
	if err == nil { // it may be repeated: the supervisor starts an id once
		r, err = c.call(ctx, &request{Op: opLaunch, State: st})
	}
	if err == nil && (r.Stat == nil || r.Stat.State == nil) {
		err = fmt.Errorf("supervisor returned no state of task %s", st.ID)
	}
	if err != nil {
		c.Forget(st.ID)
		return nil, err
	}
	if r.Stat.Exit != nil {
		c.ended(st.ID, r.Stat.Exit)
	}
	c.mu.Lock()
	h.state = r.Stat.State
	h.open()
	c.mu.Unlock()
	return r.Stat.State, nil
}

// Adopt makes the supervisor know a task that an earlier plugin started, from the
// state that came back from Nomad if the one on disk is lost.
func (c *Client) Adopt(ctx context.Context, st *task.State) (*Status, error) {
	c.mu.Lock()
	h := c.holds[st.ID]
	if h == nil {
		h = &hold{state: st, done: make(chan struct{})}
		c.holds[st.ID] = h
	}
	h.open()
	c.mu.Unlock()
	var status *Status
	err := c.wire.Repeat(ctx, func(conn *connection) (err error) {
		status, err = c.adoptOver(ctx, conn, h)
		return err
	})
	if err != nil {
		c.Forget(st.ID)
	}
	return status, err
}

// Exited returns a channel that is closed when the task has ended; Exit returns how it
// did, then. Both are for tasks that were launched or adopted, until Forget.
func (c *Client) Exited(id string) (<-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.holds[id]; h != nil {
		return h.done, nil
	}
	return nil, ErrUnknownTask
}

// Exit returns how a task ended, nil while it runs.
func (c *Client) Exit(id string) *task.Exit {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.holds[id]; h != nil {
		return h.exit
	}
	return nil
}

// Signal sends a signal: to the process, its group or all of the task.
// The error is ErrEnded if the process has ended.
func (c *Client) Signal(ctx context.Context, id string, sig unix.Signal, mode task.KillMode) error {
	_, err := c.call(ctx, &request{Op: opSignal, ID: id, Signal: int(sig), Mode: mode})
	return err
}

// Kill ends every process of a task, and returns when none is left.
func (c *Client) Kill(ctx context.Context, id string) error {
	_, err := c.call(ctx, &request{Op: opKill, ID: id})
	return err
}

// Destroy kills what is left of a task and removes all its files and cgroups. It
// works for a task that this client never saw, and twice.
func (c *Client) Destroy(ctx context.Context, id string) error {
	_, err := c.call(ctx, &request{Op: opDestroy, ID: id})
	if err == nil {
		c.Forget(id)
	}
	return err
}

// Exec starts a process in a running task, with the three files as its standard
// streams; the caller closes them. The channel delivers its exit, once; it is
// closed without a value when the connection was lost, with which the process dies.
func (c *Client) Exec(ctx context.Context, id string, spec *ExecSpec, stdio [3]*os.File) (<-chan *task.Exit, error) {
	if err := c.settle(ctx); err != nil {
		return nil, err
	}
	conn, err := c.wire.Connect(ctx)
	if err != nil {
		return nil, err
	}
	ended := make(chan *task.Exit, 1)
	c.mu.Lock()
	c.sessions[spec.Session] = ended
	c.mu.Unlock()
	_, err = roundTrip(ctx, conn, &request{Op: opExec, ID: id, Exec: spec}, stdio[:]...)
	if err != nil {
		c.mu.Lock()
		delete(c.sessions, spec.Session)
		c.mu.Unlock()
		return nil, err
	}
	return ended, nil
}

// Forget drops what the client holds of a task. A caller that still waits for its end
// gets a lost exit.
func (c *Client) Forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.holds[id]; h != nil {
		h.release()
		delete(c.holds, id)
		if h.exit == nil {
			h.exit = lost("its plugin gave it up before its end was seen")
			close(h.done)
		}
	}
}

// call makes a call that may be made twice.
func (c *Client) call(ctx context.Context, req *request) (r *reply, err error) {
	err = c.wire.Repeat(ctx, func(conn *connection) error {
		r, err = roundTrip(ctx, conn, req)
		return err
	})
	return r, err
}

// open gets a pidfd of the task, for the case that the supervisor is lost. If the process
// is gone already, the supervisor knows how it ended.
func (h *hold) open() {
	if h.exit != nil || h.pidfd != nil || h.state.Identity.PID == 0 {
		return
	}
	if fd, err := h.state.Identity.Open(); err == nil {
		h.pidfd = os.NewFile(uintptr(fd), "pidfd")
	}
}

func (h *hold) release() {
	if h.pidfd != nil {
		h.pidfd.Close()
	}
	h.pidfd = nil
}

// ended records an exit; the first one counts.
func (c *Client) ended(id string, e *task.Exit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.holds[id]; h != nil && h.exit == nil {
		h.exit = e
		h.release()
		// first: a caller that waits may forget the task at once
		c.mu.Unlock()
		c.cfg.OnExit(id, e)
		c.mu.Lock()
		close(h.done)
	}
	if session := c.sessions[id]; session != nil {
		session <- e
		close(session)
		delete(c.sessions, id)
	}
}

// adoptOver hands a task over, with its pidfd, by which the supervisor learns an exit
// that it missed.
func (c *Client) adoptOver(ctx context.Context, conn *connection, h *hold) (*Status, error) {
	var files []*os.File
	c.mu.Lock()
	if h.pidfd != nil {
		if fd, err := unix.FcntlInt(h.pidfd.Fd(), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			files = append(files, os.NewFile(uintptr(fd), "pidfd"))
		}
	}
	c.mu.Unlock()
	defer wire.CloseAll(files)
	r, err := roundTrip(ctx, conn, &request{Op: opAdopt, State: h.state}, files...)
	if err != nil {
		return nil, err
	}
	if r.Stat == nil {
		return nil, fmt.Errorf("supervisor returned no status of task %s", h.state.ID)
	}
	if r.Stat.Exit != nil {
		c.ended(h.state.ID, r.Stat.Exit)
	}
	return r.Stat, nil
}
