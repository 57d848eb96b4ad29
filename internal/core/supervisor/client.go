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

// Config configures a Client.
type Config struct {
	// Store is the directory that the plugin and its supervisor share.
	Store task.Store

	// Leaf is the cgroup for a supervisor that this client starts. Its mode is None if no cgroup can be used.
	Leaf cgroup.Group

	// Idle is how long a supervisor runs without tasks and clients, and how long the client stays connected without
	// tasks; 0 means 10 s.
	Idle time.Duration

	// OnEvent is called, from one goroutine, with each event for the user of a task.
	OnEvent func(Event)

	// OnExit is called, from one goroutine, for each launched or adopted task that has ended.
	OnExit func(id string, e *task.Exit)

	// Log receives messages for the operator.
	Log func(format string, args ...any)

	helloTime time.Duration // how long a hello may take: the constant helloTime, or less in tests
}

// Client is the plugin's side of the protocol. It is safe for concurrent use. It starts a supervisor when one is
// needed, and replaces one that was killed or does not answer. It repeats the calls in progress, except Exec, so that
// callers do not notice the replacement. No call takes longer than its deadline.
//
// For each running task, a Client holds a pidfd, which keeps the exit status while no supervisor runs. The next
// supervisor adopts the tasks.
type Client struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc

	wire *wire.Client[reply]

	leafing sync.Mutex // held while a supervisor is put in Leaf, and while Leaf is removed

	mu       sync.Mutex
	settled  bool   // true once a supervisor had this process's build and surroundings
	other    *hello // the last supervisor that did not take over this build or surroundings
	moved    string // a message for the log: how the previous supervisor was replaced
	killed   int    // pid of a supervisor that was killed because it can't take over the surroundings
	holds    map[string]*hold
	sessions map[string]chan *task.Exit // exec sessions, which end with the connection
}

// hold is a client's record of a task, from its launch or adoption until Forget.
type hold struct {
	state *task.State
	pidfd *os.File
	exit  *task.Exit
	done  chan struct{}
}

// NewClient returns a client, which starts no process before its first call.
func NewClient(cfg Config) *Client {
	if cfg.Idle == 0 {
		cfg.Idle = 10 * time.Second
	}
	if cfg.helloTime == 0 {
		cfg.helloTime = helloTime
	}
	c := &Client{cfg: cfg, holds: map[string]*hold{}, sessions: map[string]chan *task.Exit{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.wire = &wire.Client[reply]{
		Dial: c.dial, Opened: c.handOver, Lost: c.lost, Event: c.received, Needed: c.needed, Log: cfg.Log,
		WriteTime: 2 * helloTime, // in case a supervisor does not read; tend usually replaces it earlier
	}
	return c
}

// Close ends the connection. The tasks and the supervisor keep running.
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

// Launch starts a task and returns its state, with the identity of its process, once the program itself runs. If the
// program could not be started, no trace of the task is left, and a *launch.Error gives the reason.
func (c *Client) Launch(ctx context.Context, st *task.State) (*task.State, error) {
	c.mu.Lock()
	h := &hold{state: st, done: make(chan struct{})}
	c.holds[st.ID] = h // before the launch: the exit may arrive before the reply
	c.mu.Unlock()
	err := c.settle(ctx)
	var r *reply
	if err == nil { // safe to repeat: the supervisor starts each id once
		r, err = c.call(ctx, &request{Op: opLaunch, State: st})
	}
	if err == nil && (r.Stat == nil || r.Stat.State == nil) {
		err = fmt.Errorf("supervisor returned no state for task %s", st.ID)
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

// Adopt hands a task of an earlier plugin process over to the supervisor, and returns the task's status. st is the
// state that Nomad saved. The supervisor uses it if the state on disk is lost.
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

// Exited returns a channel that is closed when the task has ended and OnExit has returned. Call it after Launch or
// Adopt and before Forget.
func (c *Client) Exited(id string) (<-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.holds[id]; h != nil {
		return h.done, nil
	}
	return nil, ErrUnknownTask
}

// Signal sends a signal to the main process, its process group, or all processes of the task, depending on mode. The
// error is ErrEnded if the main process has ended.
func (c *Client) Signal(ctx context.Context, id string, sig unix.Signal, mode task.KillMode) error {
	_, err := c.call(ctx, &request{Op: opSignal, ID: id, Signal: int(sig), Mode: mode})
	return err
}

// Kill ends every process of a task, and returns when none is left.
func (c *Client) Kill(ctx context.Context, id string) error {
	_, err := c.call(ctx, &request{Op: opKill, ID: id})
	return err
}

// Destroy kills the remaining processes of a task and removes all its files and cgroups. It is idempotent, and also
// works for a task that this client never launched or adopted.
func (c *Client) Destroy(ctx context.Context, id string) error {
	_, err := c.call(ctx, &request{Op: opDestroy, ID: id})
	if err == nil {
		c.Forget(id)
	}
	return err
}

// Exec starts a process in a running task, with the three files as its standard streams; the caller closes them. The
// channel delivers the exit once. If the connection is lost, the process is killed, and the channel is closed without
// a value.
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

// Forget drops the client's record of a task. Callers that still wait for the task's end get a lost exit.
func (c *Client) Forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.holds[id]; h != nil {
		h.release()
		delete(c.holds, id)
		if h.exit == nil {
			h.exit = lost("the plugin released the task before its exit was observed")
			close(h.done)
		}
	}
}

// call sends a request, and repeats it if the connection is lost. The request must be safe to repeat.
func (c *Client) call(ctx context.Context, req *request) (r *reply, err error) {
	err = c.wire.Repeat(ctx, func(conn *connection) error {
		r, err = roundTrip(ctx, conn, req)
		return err
	})
	return r, err
}

// open opens a pidfd of the task's process, which keeps the exit status if the supervisor is killed. If the process is
// already gone, no pidfd is needed, because the supervisor has the exit.
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

// ended records the first exit of a task or session, and ignores later ones.
func (c *Client) ended(id string, e *task.Exit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.holds[id]; h != nil && h.exit == nil {
		h.exit = e
		h.release()
		// call OnExit before closing h.done, because a caller that waits for h.done may call Forget immediately
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

// adoptOver hands a task and its pidfd to the supervisor at the other end of a connection. The pidfd has the exit
// status if no supervisor was running when the task ended.
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
		return nil, fmt.Errorf("supervisor returned no status for task %s", h.state.ID)
	}
	if r.Stat.Exit != nil {
		c.ended(h.state.ID, r.Stat.Exit)
	}
	return r.Stat, nil
}
