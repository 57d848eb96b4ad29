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

// A collector that takes longer than answerTime to reply to a request that touches no file is replaced. This loses no
// output, even if the old collector still runs. When any other call takes longer than askAfter, the client sends such
// requests to check whether the collector still responds.
const (
	answerTime = 10 * time.Second
	askAfter   = 500 * time.Millisecond
)

// startTime limits the start of a collector. It is long because an overloaded machine takes seconds to execute a
// program.
const startTime = 25 * time.Second

// Config configures a Client.
type Config struct {
	Store task.Store

	// Argv0 is the argv[0] with which a collector is executed.
	Argv0 string

	// Build identifies this binary. A collector of another build is replaced.
	Build string

	// OnEvent is called, from one goroutine, with each event for the user of a task.
	OnEvent func(Event)

	// Forks is held from the fork of a collector until OnStart has returned. OnStart is called with the collector's pid,
	// and OnEnd after the collector has been reaped.
	Forks          sync.Locker
	OnStart, OnEnd func(pid int)

	// Log receives messages for the operator.
	Log func(format string, args ...any)
}

// Client is the supervisor's side of the protocol. It finds the store's collector or starts one, and replaces a
// collector that has exited. It is safe for concurrent use. A call returns when its context ends, unless it is
// replacing a collector.
type Client struct {
	cfg  Config
	wire *wire.Client[reply]

	mu    sync.Mutex
	specs map[string]Spec // the tasks whose output is collected
	had   []string        // the tasks that the collector already had when this client connected
	hangs map[string]bool // whether a task's output blocks the collector, as the collector has reported
	over  bool
}

type connection = wire.Conn[reply]

// NewClient returns a client. It starts no process before the first call.
func NewClient(cfg Config) *Client {
	c := &Client{cfg: cfg, specs: map[string]Spec{}, hangs: map[string]bool{}}
	c.wire = &wire.Client[reply]{
		Dial: c.dial, Event: c.received, Needed: c.needed, Log: cfg.Log,
		WriteTime: answerTime, // for a collector that no longer reads its socket
	}
	return c
}

// Start begins to collect the output of a task that is being started. For CollectorDriver, the caller passes the read
// ends of the task's FIFOs, and closes them later. For CollectorNomad, Start returns the task's ends of Nomad's FIFOs.
// All runs of a task in an allocation share the log files, so Start also returns the place where the stderr of this run
// begins. After an error nothing is collected.
func (c *Client) Start(
	ctx context.Context, spec Spec, files ...*os.File,
) (ends []*os.File, from task.LogPlace, err error) {
	r, err := c.repeat(ctx, &request{Op: opTake, ID: spec.ID, Spec: &spec, New: true}, files...)
	if err == nil {
		c.Keep(spec)
	}
	return r.Files, r.Body.From, err
}

// Keep ensures that collectors that are started later collect a task's output too. It starts no collector itself.
func (c *Client) Keep(spec Spec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.specs[spec.ID] = spec
}

// Resume ensures that the output of a task that was started earlier is collected. It returns true if the collector has
// had the task without interruption, so no output is missing.
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

// Drain returns when all output of a task is in the files. It returns false if this takes too long, for example because
// the disk is full or the file system hangs; the collector then continues.
func (c *Client) Drain(ctx context.Context, id string) (all bool, err error) {
	r, err := c.repeat(ctx, &request{Op: opDrain, ID: id})
	return err == nil && !r.Body.Waits, err
}

// Close ends the collection of a task's output. If a file system hangs, the collector moves the remaining output in the
// background, once the file system responds. Close starts no collector.
func (c *Client) Close(ctx context.Context, id string) error {
	c.mu.Lock()
	delete(c.specs, id)
	c.mu.Unlock()
	for try := 0; ; try++ {
		p := c.find()
		if p == nil {
			return nil // no collector runs, and a later one does not get the task
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

// Rename changes the id of a task.
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

// End lets the collector exit after it has moved the remaining output. It returns when the collector has exited or ctx
// has ended. Do not use the Client afterwards.
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
		if conn == nil || ctx.Err() != nil { // not connected, or the collector waits for a file system
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	_ = os.Remove(Socket(c.cfg.Store))
	_ = os.Remove(identityFile(c.cfg.Store))
}

// repeat makes an idempotent call: it repeats the call if the connection is lost.
func (c *Client) repeat(ctx context.Context, req *request, files ...*os.File) (r wire.Message[reply], err error) {
	err = c.wire.Repeat(ctx, func(conn *connection) (err error) {
		r, err = c.ask(ctx, conn, req, files...)
		return err
	})
	return r, err
}

// ask makes one call. If the reply is late, ask checks whether the collector still responds, and closes the connection
// if not. The kernel keeps the connection of a killed collector open as long as a thread of the collector hangs in a
// file system.
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
			c.cfg.Log("collector does not respond: replacing it")
		}
		conn.Close()
	}
	return err == nil
}

// dial connects to the running collector. If none runs, or the collector does not reply or belongs to another build,
// dial starts a new one and passes it all running tasks.
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

// identityFile returns the path of the file with the identity of the active collector.
func identityFile(s task.Store) string { return filepath.Join(s.Dir, "collector.json") }

func readIdentity(s task.Store) (id task.Identity, err error) {
	b, err := os.ReadFile(identityFile(s))
	if err == nil {
		err = json.Unmarshal(b, &id)
	}
	return id, err
}

// Find calls OnStart with the pid of a running collector, if one exists. Call it before inspecting this process's
// children, since the collector may be one of them.
func (c *Client) Find() {
	if p := c.find(); p != nil {
		unix.Close(p.pidfd)
	}
}

// process is a running collector.
type process struct {
	pid   int
	pidfd int
}

// find returns the active collector, or nil.
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
	if task.Dead(fd, 0) { // a zombie, possibly a child of this process from before an upgrade
		p.reap()
		c.cfg.OnEnd(id.PID)
		unix.Close(fd)
		return nil
	}
	c.cfg.OnStart(id.PID) // this collector may also be a child, started before an upgrade
	return p
}

var errOther = errors.New("the running collector is from another build")

// greet connects to the running collector p. It returns an error if the caller must replace the collector, or start one
// because p is nil.
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

// replace starts a new collector and kills the old one. The new collector opens all files of the old one before the
// kill, but moves output only after the old one's death, because two collectors would overwrite each other's output.
//
// If the old collector does not die immediately, its threads hang in file systems. In splice(2), such a thread holds
// the lock of its FIFO. When the file system responds, the thread exits before it moves further bytes, so the new
// collector need not wait for it. (On a file system without splice(2), the thread does not hold the lock, and could
// still overwrite output. ext4, XFS, Btrfs, tmpfs and NFS have splice.)
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
		conn.Close() // the new collector exits, since it has not received opGo
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.had = nil
	return conn, nil
}

// handOver passes the tasks to a new collector, kills the old one and activates the new one. It calls the function
// opened as soon as the new collector has opened its files.
func (c *Client) handOver(
	ctx context.Context, conn *connection, id task.Identity, old *process, specs []Spec, opened func(),
) error {
	starting, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if _, err := conn.Call(starting, &request{Op: opHello}); err != nil {
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
	// write the file before killing the old collector: if the disk is full, the old collector stays active
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

// hold keeps the FIFOs of tasks open until release is called. Otherwise the output in a FIFO would be lost if the task
// ended before the new collector has opened the FIFO. hold does not touch a FIFO that blocked the last collector: it
// would block this process too, which then could not even be killed. hold waits for at most takeTime.
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

// takeTime limits the opening of FIFOs and files. Opening takes longer only if a file system hangs.
const takeTime = time.Second

// kill kills the process. It returns when the process is dead, or when all its remaining threads are in uninterruptible
// sleep (state D of proc_pid_stat(5)).
func (p *process) kill() {
	_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
	// require twenty samples in a row, because each write puts a thread into state D for a moment
	for hung := 0; hung < 20 && !task.Dead(p.pidfd, 50*time.Millisecond); {
		if hung++; !p.hangs() {
			hung = 0
		}
	}
	p.reap()
}

// reap reaps the process if it is a child. Otherwise, and if it was reaped before, Waitid only fails (ECHILD).
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

// start starts a collector, and returns the connection to it and its identity.
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
	// GOGC=10 saves memory, because every plugin has a collector; it costs little time, because there is little garbage
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

// received handles the messages that the collector sends without a request: events and stalls.
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

// needed reports whether a lost collector must be replaced, because the output of a task is still collected.
func (c *Client) needed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.over && len(c.specs) > 0
}
