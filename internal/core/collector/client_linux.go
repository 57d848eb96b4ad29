// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package collector

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// answerTime is how long a collector may take for what touches no file. One that
// takes longer is replaced, which loses nothing: it may be alive. It is asked when a
// call has been under way for askAfter.
const (
	answerTime = 3 * time.Second
	askAfter   = 500 * time.Millisecond
)

// Config is what a Client needs to know.
type Config struct {
	Store task.Store

	// Argv0 is the name under which the supervisor's binary runs in a role.
	Argv0 string

	// Build says which binary this is. A collector of another build is replaced.
	Build string

	// OnEvent is called, from one goroutine, with each event for the user of a task.
	OnEvent func(Event)

	// Forks is held from the fork of a collector until OnStart has returned. OnStart
	// is called with its pid, and OnEnd once it has been reaped.
	Forks          sync.Locker
	OnStart, OnEnd func(pid int)

	// Log receives messages for the operator.
	Log func(format string, args ...any)
}

// Client is a supervisor's side: it finds the collector that serves the store, or
// starts one, and another when that one has gone. It is safe for concurrent use.
// A call takes as long as its context, and longer while a collector is replaced.
type Client struct {
	cfg  Config
	wire *wire.Client[reply]

	mu    sync.Mutex
	specs map[string]Spec // the tasks whose output is collected
	had   []string        // the tasks that the collector had when this client connected to it
	hangs map[string]bool // the tasks at which the collector reports hanging
	over  bool
}

type connection = wire.Conn[reply]

// NewClient returns a client; nothing runs before its first call.
func NewClient(cfg Config) *Client {
	c := &Client{cfg: cfg, specs: map[string]Spec{}, hangs: map[string]bool{}}
	c.wire = &wire.Client[reply]{
		Dial: c.dial, Event: c.received, Needed: c.needed, Log: cfg.Log,
		WriteTime: answerTime, // for a collector that does not read
	}
	return c
}

// Start begins to collect the output of a task that is being started. files are the
// read ends of its FIFOs, for CollectorDriver; they stay the caller's. For CollectorNomad
// it returns the task's ends of Nomad's FIFOs. from is where the task's stderr begins, since
// all its runs in an allocation write to the same files. After an error nothing is collected.
func (c *Client) Start(
	ctx context.Context, spec Spec, files ...*os.File,
) (ends []*os.File, from task.LogPlace, err error) {
	r, err := c.repeat(ctx, &request{Op: opTake, ID: spec.ID, Spec: &spec, New: true}, files...)
	if err == nil {
		c.Keep(spec)
	}
	return r.Files, r.Body.From, err
}

// Keep records a task whose output is collected: a collector that replaces another one gets
// it. Keep itself starts no collector.
func (c *Client) Keep(spec Spec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.specs[spec.ID] = spec
}

// Resume makes sure that the output of a task that was started earlier is collected.
// It reports whether it always was, so that nothing can be missing.
func (c *Client) Resume(ctx context.Context, spec Spec) (always bool, err error) {
	c.Keep(spec)
	if _, err := c.wire.Connect(ctx); err != nil {
		return false, err
	}
	c.mu.Lock()
	always = slices.Contains(c.had, spec.ID)
	c.mu.Unlock()
	if !always {
		_, err = c.repeat(ctx, &request{Op: opTake, ID: spec.ID, Spec: &spec})
	}
	return always, err
}

// Drain returns when all that a task wrote is in the files; false if that takes
// too long, as on a full disk or a file system that does not answer: it goes on then.
func (c *Client) Drain(ctx context.Context, id string) (all bool, err error) {
	r, err := c.repeat(ctx, &request{Op: opDrain, ID: id})
	return err == nil && !r.Body.Waits, err
}

// Close ends the collection of a task's output. What waits for a file system is
// moved in the background when that answers. Nothing is started for it.
func (c *Client) Close(ctx context.Context, id string) error {
	c.mu.Lock()
	delete(c.specs, id)
	c.mu.Unlock()
	for try := 0; ; try++ {
		p := c.find()
		if p == nil {
			return nil // one that comes later does not get the task
		}
		unix.Close(p.pidfd)
		conn, err := c.wire.Connect(ctx)
		if err == nil {
			_, err = c.ask(ctx, conn, &request{Op: opClose, ID: id})
		}
		if !errors.Is(err, wire.ErrLost) || try >= 3 {
			return err
		}
	}
}

// Rename gives a task another id.
func (c *Client) Rename(ctx context.Context, id, to string) error {
	c.mu.Lock()
	if spec, ok := c.specs[id]; ok {
		delete(c.specs, id)
		spec.ID = to
		c.specs[to] = spec
	}
	c.mu.Unlock()
	_, err := c.repeat(ctx, &request{Op: opRename, ID: id, To: to})
	return err
}

// End lets the collector go when it has moved what there is, and returns when it is
// gone, or ctx has ended. No call may follow.
func (c *Client) End(ctx context.Context) {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	conn := c.wire.Current()
	if conn != nil {
		_, _ = c.ask(ctx, conn, &request{Op: opEnd})
	}
	for p := c.find(); p != nil; p = c.find() {
		unix.Close(p.pidfd)
		if conn == nil || ctx.Err() != nil { // it waits for a file system
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	_ = os.Remove(Socket(c.cfg.Store))
	_ = os.Remove(identityFile(c.cfg.Store))
}

// repeat makes a call that may be made twice.
func (c *Client) repeat(ctx context.Context, req *request, files ...*os.File) (r wire.Message[reply], err error) {
	err = c.wire.Repeat(ctx, func(conn *connection) (err error) {
		r, err = c.ask(ctx, conn, req, files...)
		return err
	})
	return r, err
}

// ask makes one call. A collector that is late with its answer is asked whether it
// answers at all, and its connection is closed if it does not: a killed process with a
// thread in a file system that does not answer stays, and so does its connection.
func (c *Client) ask(
	ctx context.Context, conn *connection, req *request, files ...*os.File,
) (r wire.Message[reply], err error) {
	over, done := context.WithCancel(ctx)
	defer done()
	look := time.AfterFunc(askAfter, func() {
		for c.isResponsive(conn) {
			select {
			case <-over.Done():
				return
			case <-time.After(askAfter):
			}
		}
	})
	defer look.Stop()
	if r, err = conn.Call(ctx, req, files...); err == nil && r.Body.Error != "" {
		err = errors.New(r.Body.Error)
	}
	return r, err
}

func (c *Client) isResponsive(conn *connection) bool {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	_, err := conn.Call(ctx, &request{Op: opHello})
	if err != nil {
		if !errors.Is(err, wire.ErrLost) {
			c.cfg.Log("collector does not answer: replacing it")
		}
		conn.Close()
	}
	return err == nil
}

// dial connects to a collector of this build that knows all running tasks.
func (c *Client) dial(ctx context.Context) (*connection, error) {
	old := c.find()
	conn, err := c.greet(ctx, old)
	if err == nil {
		return conn, nil
	}
	if conn, err = c.replace(ctx, old); err != nil {
		return nil, fmt.Errorf("failed to start the collector: %w", err)
	}
	return conn, nil
}

// identityFile is where the identity of the collector is kept that moves the output.
func identityFile(s task.Store) string { return filepath.Join(s.Dir, "collector.json") }

func readIdentity(s task.Store) (id task.Identity, err error) {
	b, err := os.ReadFile(identityFile(s))
	if err == nil {
		err = json.Unmarshal(b, &id)
	}
	return id, err
}

// Find calls OnStart with the pid of the collector that runs, if one does. It must precede
// anything that looks at this process's children.
func (c *Client) Find() {
	if p := c.find(); p != nil {
		unix.Close(p.pidfd)
	}
}

// process is one that moves output.
type process struct {
	pid   int
	pidfd int
}

// find returns the process that moves the output; nil if none does.
func (c *Client) find() *process {
	id, err := readIdentity(c.cfg.Store)
	if err != nil {
		return nil
	}
	fd, err := id.Open()
	if err != nil {
		return nil
	}
	p := &process{pid: id.PID, pidfd: fd}
	if task.Dead(fd, 0) { // a zombie, perhaps this process's own from before an upgrade
		p.reap()
		c.cfg.OnEnd(id.PID)
		unix.Close(fd)
		return nil
	}
	c.cfg.OnStart(id.PID) // it may be a child from before an upgrade, too
	return p
}

var errOther = errors.New("the collector is of another build")

// greet connects to the collector that runs. After an error it is to be replaced, if there
// is one.
func (c *Client) greet(ctx context.Context, p *process) (*connection, error) {
	if p == nil {
		return nil, unix.ESRCH
	}
	w, err := wire.Dial(Socket(c.cfg.Store))
	if err != nil {
		return nil, err
	}
	conn := c.wire.Open(w)
	r, err := c.hello(ctx, conn)
	if err == nil && r.Build != c.cfg.Build {
		err = errOther
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	unix.Close(p.pidfd)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.had = r.Tasks
	for _, id := range r.Hangs {
		c.hangs[id] = true
	}
	return conn, nil
}

func (c *Client) hello(ctx context.Context, conn *connection) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	r, err := c.ask(ctx, conn, &request{Op: opHello})
	return &r.Body, err
}

// replace starts a collector. It opens all that the old one has open before that one is
// killed, and moves nothing before that one is dead, since two of them would overwrite
// each other's output. (On a file system without splice(2), of which Linux has none
// with ordinary files, one that hangs could.)
//
// A collector that does not die at once has threads in file systems that do not answer.
// Each holds the lock of the FIFO that it moves (splice(2) does), and ends when the file
// system answers, before it moves anything else: so there is no need to wait for it.
func (c *Client) replace(ctx context.Context, old *process) (*connection, error) {
	if old != nil {
		defer unix.Close(old.pidfd)
	}
	c.mu.Lock()
	specs := slices.Collect(maps.Values(c.specs))
	c.mu.Unlock()
	release := sync.OnceFunc(c.hold(specs))
	defer release()
	conn, id, err := c.start()
	if err != nil {
		return nil, err
	}
	if err := c.handOver(ctx, conn, id, old, specs, release); err != nil {
		conn.Close() // it ends, since opGo has not reached it
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.had = nil
	return conn, nil
}

// handOver gives a new collector the tasks and the old one's place. opened is called when it
// has opened what it needs.
func (c *Client) handOver(
	ctx context.Context, conn *connection, id task.Identity, old *process, specs []Spec, opened func(),
) error {
	if _, err := c.hello(ctx, conn); err != nil {
		return err
	}
	var taken sync.WaitGroup
	for _, spec := range specs {
		taken.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, takeTime)
			defer cancel()
			_, _ = conn.Call(ctx, &request{Op: opTake, Spec: &spec})
		})
	}
	taken.Wait()
	opened()
	// what takes space comes before the old one's end: on a full disk that one goes on
	fresh := identityFile(c.cfg.Store) + ".new"
	b, err := json.Marshal(id)
	if err != nil {
		return err
	}
	if err := os.WriteFile(fresh, b, 0o600); err != nil {
		return err
	}
	if old != nil {
		old.kill()
		c.cfg.OnEnd(old.pid)
	}
	if err := os.Rename(fresh, identityFile(c.cfg.Store)); err != nil {
		return err
	}
	_, err = c.ask(ctx, conn, &request{Op: opGo})
	return err
}

// hold opens the FIFOs of tasks until release, so that what is in them is not lost
// with a task that ends before another collector has them open. A FIFO at which the
// last one hung is not touched: this process would hang with it, and could not even be
// killed. It waits for takeTime at most.
func (c *Client) hold(specs []Spec) (release func()) {
	fds := make(chan int, 2*len(specs))
	var opening sync.WaitGroup
	c.mu.Lock()
	for _, spec := range specs {
		if spec.Output.Collector != task.CollectorDriver || c.hangs[spec.ID] {
			continue
		}
		opening.Go(func() {
			for _, name := range Streams {
				if fd, err := logs.OpenReadEnd(c.cfg.Store.FIFO(spec.ID, name)); err == nil {
					fds <- fd
				}
			}
		})
	}
	clear(c.hangs)
	c.mu.Unlock()
	opened := make(chan struct{})
	go func() {
		opening.Wait()
		close(fds)
		close(opened)
	}()
	select {
	case <-opened:
	case <-time.After(takeTime):
	}
	return func() {
		go func() {
			for fd := range fds {
				unix.Close(fd)
			}
		}()
	}
}

// takeTime is how long a FIFO may take to be opened where nothing hangs.
const takeTime = time.Second

// kill returns when the process is dead, or what is left of it hangs: all its threads
// are in a system call that nothing interrupts (state D of proc_pid_stat(5)).
func (p *process) kill() {
	_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
	// seen twenty times, since a thread is there for a moment at each write
	for hung := 0; hung < 20 && !task.Dead(p.pidfd, 50*time.Millisecond); {
		if hung++; !p.hangs() {
			hung = 0
		}
	}
	p.reap()
}

// reap reaps a process that may be a child. ECHILD means that it is not, or was reaped.
func (p *process) reap() { _ = unix.Waitid(unix.P_PIDFD, p.pidfd, nil, unix.WEXITED|unix.WNOHANG, nil) }

func (p *process) hangs() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid))
	if err != nil {
		return false
	}
	for _, path := range threads {
		b, err := os.ReadFile(path)
		_, state, ok := bytes.Cut(b[max(0, bytes.LastIndexByte(b, ')')):], []byte(") "))
		if err == nil && ok && len(state) > 0 && !bytes.ContainsRune([]byte("DZX"), rune(state[0])) {
			return false
		}
	}
	return true
}

// start forks a collector.
func (c *Client) start() (conn *connection, id task.Identity, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, id, err
	}
	its := os.NewFile(uintptr(pair[1]), "supervisor")
	defer its.Close()
	t, err := wire.FromFD(pair[0])
	if err != nil {
		return nil, id, err
	}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{c.cfg.Argv0, Role, c.cfg.Store.Dir}
	// its garbage is little, and the memory that waits for it counts for each plugin
	cmd.Env = []string{buildVar + "=" + c.cfg.Build, "GOGC=10"}
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{its}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.cfg.Forks.Lock()
	defer c.cfg.Forks.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, id, err
	}
	pid := cmd.Process.Pid
	c.cfg.OnStart(pid)
	id, err = task.Identify(pid)
	go func() {
		_ = cmd.Wait()
		c.cfg.OnEnd(pid)
	}()
	if err != nil {
		return nil, id, err
	}
	return c.wire.Open(t), id, nil
}

// received is called with each message that is no reply.
func (c *Client) received(r reply) {
	switch {
	case r.Event != nil:
		c.cfg.OnEvent(*r.Event)
	case r.Stall != nil:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.hangs[r.Stall.ID] = r.Stall.On
	}
}

// needed reports whether there is something to collect.
func (c *Client) needed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.over && len(c.specs) > 0
}
