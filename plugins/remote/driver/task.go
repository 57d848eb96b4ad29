// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// remoteTask is a task on a host. The method run, which Claim starts, follows the task across reconnects.
type remoteTask struct {
	config *drivers.TaskConfig // only the fields that newTask copies; AllocDir is a path on this node
	engine *engine
	host   *host.Host
	saved  saved
	event  core.Event
	ctx    context.Context // ends when the task is destroyed or the method part is called
	cancel context.CancelFunc

	core.Ending

	running sync.Once
	parted  atomic.Bool // part was called, because the run belongs to another allocation or to none
	tidying atomic.Bool // tidy's attempt to end the run is under way

	claiming sync.Mutex // held while the run is claimed or released on the host

	copied  atomic.Int64 // counts parts of the output
	logging sync.Mutex   // held while output is copied to this node
	copying sync.Mutex   // held while files are copied to the host

	minute time.Time // when forward began to count events
	events int       // events of the host since that time

	wanted bool // for shim.ClaimRequest.Wanted; set by Start

	mu      sync.Mutex
	stop    *stop  // the requested stop, nil if none
	takenBy string // the allocation that has the run, empty if it is this task's allocation
}

// saved is the task's state in Nomad's handle. Fields may be added, but never changed or removed.
type saved struct {
	Endpoint string `json:"endpoint"`
	Key      string `json:"key"`  // see shim.ClaimRequest
	Hash     string `json:"hash"` // see shim.ClaimRequest
	RunID    string `json:"run_id"`
	Logs     logs   `json:"logs"`

	Copied time.Time `json:"copied"` // the next copy includes only files that changed later

	OnDrain       string        `json:"on_drain"`
	OnLost        string        `json:"on_lost"`
	OrphanTimeout time.Duration `json:"orphan_timeout"`
}

type stop struct {
	timeout time.Duration
	signal  string
}

var (
	_ core.Claimer   = (*remoteTask)(nil)
	_ core.Describer = (*remoteTask)(nil)
	_ core.Forwarder = (*remoteTask)(nil)
	_ core.Saver     = (*remoteTask)(nil)
)

func (t *remoteTask) Saved() ([]byte, error) { return json.Marshal(t.saved) }

// Claim implements core.Claimer. It starts the method run, which claims the task's run on the host.
func (t *remoteTask) Claim() error {
	t.running.Do(func() { go t.run() })
	return nil
}

func (t *remoteTask) Describe(r *core.Run) {
	r.Attributes = map[string]string{"endpoint": t.saved.Endpoint}
	if link := t.host.Connected(); link != nil && link.Address != "" {
		r.Network = &drivers.DriverNetwork{IP: link.Address}
	}
}

const (
	quietTime  = 5 * time.Second  // how long a connection is missing before a task event reports it
	outputTime = 30 * time.Second // how long an exit waits for more output, which may be stuck, as on a full disk
	againTime  = 5 * time.Second  // the pause after an error of the host that may be temporary
	doubtTime  = 5 * time.Minute  // how long such errors may repeat before the task counts as lost
)

// run follows the task until it has ended or is destroyed.
func (t *remoteTask) run() {
	f := &following{remoteTask: t}
	for !t.over() {
		link, err := f.connect()
		if err != nil {
			break
		}
		if exit := f.follow(link); exit != nil {
			t.End(cmp.Or(f.exit, exit)) // an earlier exit, whose output was still missing, takes precedence
			return
		}
	}
	if f.exit != nil && t.ctx.Err() == nil {
		t.event("The end of the output is missing: endpoint %q can't be reached", t.saved.Endpoint)
		t.End(f.exit)
	}
}

func (t *remoteTask) over() bool {
	select {
	case <-t.Ended():
		return true
	default:
		return t.ctx.Err() != nil
	}
}

// following is the state of the method run.
type following struct {
	*remoteTask
	exit   *task.Exit // the exit that the host has reported; set while the end of the output is missing
	doubts time.Time  // when the current series of the host's errors began, see doubt
}

// connect waits for a connection, and reports a long wait as a task event. If the exit is known already, it waits at
// most for outputTime.
func (f *following) connect() (*host.Link, error) {
	ctx := f.ctx
	if f.exit != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(f.ctx, outputTime)
		defer cancel()
	}
	silence := time.AfterFunc(quietTime, func() {
		f.event("No connection to endpoint %q; the task keeps running there", f.saved.Endpoint)
	})
	link, err := f.host.Keep(ctx)
	if !silence.Stop() && err == nil {
		f.event("Connected to endpoint %q again", f.saved.Endpoint)
	}
	return link, err
}

// follow claims the task's run on this connection, copies its output, and returns its exit. It returns nil if the
// caller must call follow again, on the same or a new connection.
func (f *following) follow(link *host.Link) *task.Exit {
	begun := time.Now()
	mine, err := f.reclaim(f.ctx, link)
	if status.Code(err) == codes.NotFound && link.Alive() {
		return lost("the run no longer exists: " + plain.Line(status.Convert(err).Message(), maxMessage))
	}
	if err != nil {
		return f.doubt(link, begun, err)
	}
	if !mine {
		select {
		case <-f.Ended():
		case <-f.ctx.Done():
		case <-time.After(takenTime): // then claim the run again: the other allocation may have released it
		}
		return nil
	}
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	output := make(chan struct{})
	go func() {
		defer close(output)
		f.logging.Lock() // only one copy at a time: each begins where the last one has ended
		defer f.logging.Unlock()
		if err := f.copyOutput(ctx, link); err != nil {
			f.event("Stopped copying the output: %v", err)
		}
	}()
	go func() { _ = f.stopOn(link) }() // an earlier connection may have failed to deliver a stop
	results, err := link.Driver.WaitTask(ctx, f.saved.RunID)
	if err != nil {
		return f.doubt(link, begun, err)
	}
	result := <-results
	if f.ctx.Err() != nil {
		return nil
	}
	if _, ofCall := status.FromError(result.Err); result.Err != nil && (ofCall || !link.Alive()) {
		return f.doubt(link, begun, result.Err) // the call failed: errors of the task itself have no status code
	}
	if f.exit == nil {
		// the host reports an exit to all connections: check that the run is still this allocation's
		mine, err := f.reclaim(f.ctx, link)
		if !mine || err != nil {
			return nil
		}
		f.exit = f.exitOf(result)
	}
	if !f.waitOutput(link, output) {
		return nil // the next connection brings the rest of the output
	}
	return f.exit
}

// doubt handles an error in a call of follow that began at the time begun. If the connection was lost, doubt returns
// nil immediately. Otherwise the error is the host's and may be temporary, so doubt pauses and returns nil. Once such
// errors have continued for doubtTime, it returns a lost exit.
func (f *following) doubt(link *host.Link, begun time.Time, err error) *task.Exit {
	if f.ctx.Err() != nil || !link.Alive() {
		return nil
	}
	if f.doubts.IsZero() || time.Since(begun) > againTime { // the first error, or the first after a while without one
		f.doubts = time.Now()
	}
	if time.Since(f.doubts) > doubtTime {
		return lost("the host has failed to recover the task: " + plain.Line(err.Error(), maxMessage))
	}
	select {
	case <-time.After(againTime):
	case <-f.ctx.Done():
	}
	return nil
}

// waitOutput waits for the end of the output of an ended task. It returns false if the connection ends before that. If
// no output arrives for outputTime, it gives up and returns true.
func (f *following) waitOutput(link *host.Link, output <-chan struct{}) bool {
	for {
		before := f.copied.Load()
		select {
		case <-output:
			return link.Alive()
		case <-f.ctx.Done():
			return true
		case <-time.After(outputTime):
		}
		if f.copied.Load() == before {
			f.event("The end of the output is missing: no output arrived for %v", outputTime)
			return true
		}
	}
}

// maxMessage is the maximum length of a text from a host or from Nomad in an event or an error, in characters.
const maxMessage = 500

// exitOf converts an exit that a host reports. The exit's message becomes an event.
func (t *remoteTask) exitOf(r *drivers.ExitResult) *task.Exit {
	message := ""
	if r.Err != nil {
		message = plain.Line(r.Err.Error(), maxMessage)
	}
	if reason, ok := strings.CutPrefix(message, "task is lost: "); ok { // see exitResult in internal/core/driver
		return lost(reason)
	}
	if message != "" {
		t.event("%s", message)
	}
	exit := &task.Exit{OOMKilled: r.OOMKilled, At: time.Now()}
	switch {
	case r.Signal > 0 && r.Signal < 128:
		exit.Signal = r.Signal
	case r.Signal == 0 && r.ExitCode >= 0 && r.ExitCode <= 255:
		exit.Code = r.ExitCode
	default:
		return lost(fmt.Sprintf("the host reported an invalid exit: code %d, signal %d", r.ExitCode, r.Signal))
	}
	return exit
}

func lost(reason string) *task.Exit { return &task.Exit{Lost: true, Reason: reason, At: time.Now()} }

// ofCore has prefixes of events that the core on this node emits itself. forward drops them when they come from a host.
var ofCore = []string{"Killed by signal ", "Lost: ", "Re-attached "}

// forward emits an event of the host's driver as an event of this task. It limits the rate of these events, because
// Nomad writes each one to disk. Only one goroutine may call forward.
func (t *remoteTask) forward(message string) {
	if time.Since(t.minute) > time.Minute {
		t.minute, t.events = time.Now(), 0
	}
	t.events++
	ours := slices.ContainsFunc(ofCore, func(prefix string) bool { return strings.HasPrefix(message, prefix) })
	if !ours && t.events <= 30 && !t.parted.Load() {
		t.event("%s", plain.Line(message, maxMessage))
	}
}

// Signal implements core.Task. It first copies changed files: Nomad may send the signal because of a changed template.
func (t *remoteTask) Signal(_ context.Context, signal string) error {
	link, err := t.connected()
	if err != nil {
		return err
	}
	t.refresh(t.ctx, link)
	return link.Driver.SignalTask(t.saved.RunID, signal)
}

// connected returns the current connection. It does not wait for a new one.
func (t *remoteTask) connected() (*host.Link, error) {
	if link := t.host.Connected(); link != nil {
		return link, nil
	}
	return nil, fmt.Errorf("endpoint %q can't be reached now", t.saved.Endpoint)
}

// stopGrace is how long, after the kill timeout, a stop waits for an unreachable host.
const stopGrace = 30 * time.Second

// Stop implements core.Task. It ends the run or releases it for the next allocation, depending on why Nomad stops
// the task. An unreachable host gets the stop as soon as it is connected again, even if Stop has returned an error.
func (t *remoteTask) Stop(ctx context.Context, timeout time.Duration, signal string) error {
	if t.isTaken() {
		t.part()
		return nil
	}
	meant := t.meant(ctx)
	if meant.release {
		t.release(meant.reason)
		return nil
	}
	if meant.reason != "" {
		t.event("Stopped: %s", meant.reason)
	}
	return t.end(ctx, timeout, signal)
}

// meant finds out why Nomad ends the task. Once a stop was requested, it returns the zero meaning, which is a stop.
func (t *remoteTask) meant(ctx context.Context) meaning {
	t.mu.Lock()
	stopped := t.stop != nil
	t.mu.Unlock()
	if stopped {
		return meaning{}
	}
	return t.engine.nomad.ask(ctx, &t.saved, t.config.AllocID)
}

// end stops the task on its host, and waits for the exit.
func (t *remoteTask) end(ctx context.Context, timeout time.Duration, signal string) error {
	t.mu.Lock()
	t.stop = &stop{timeout: timeout, signal: signal}
	t.mu.Unlock()
	limit := time.After(timeout + stopGrace)
	stopped := make(chan error, 1)
	link, err := t.connected()
	if err == nil {
		go func() { stopped <- t.stopOn(link) }() // blocks until the task or the connection ends, or longer if a disk hangs
	}
	for {
		select {
		case <-t.Ended():
			return nil
		case err = <-stopped:
			if err != nil && link.Alive() {
				return errors.New(plain.Line(err.Error(), maxMessage)) // an error of the host
			}
		case <-limit:
			return fmt.Errorf("the stop is pending until endpoint %q can be reached: %w", t.saved.Endpoint,
				cmp.Or(err, errors.New("the host has not reported the exit")))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stopOn stops the task on the host if a stop was requested. From then on, no other allocation can take the run over.
func (t *remoteTask) stopOn(link *host.Link) error {
	t.mu.Lock()
	s := t.stop
	t.mu.Unlock()
	if s == nil {
		return nil
	}
	err := t.become(t.ctx, link, shim.Stopping)
	if status.Code(err) == codes.FailedPrecondition { // not claimed on this connection, or later claimed on another
		mine, failed := t.reclaim(t.ctx, link)
		if failed != nil || !mine {
			return failed
		}
		err = t.become(t.ctx, link, shim.Stopping)
	}
	if err != nil {
		return err
	}
	return link.Driver.StopTask(t.saved.RunID, s.timeout, s.signal)
}

// TaskStats implements core.Forwarder. Nomad calls it again when the channel closes, such as after a lost connection.
func (t *remoteTask) TaskStats(ctx context.Context, interval time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	link, err := t.connected()
	if err == nil {
		usages, err := link.Driver.TaskStats(ctx, t.saved.RunID, interval)
		if err == nil {
			return usages, nil
		}
	}
	none := make(chan *drivers.TaskResourceUsage)
	close(none) // instead of an error, which Nomad would log every few seconds
	return none, nil
}

// ExecTask implements core.Forwarder. It first copies changed files, because the command may be a script from a
// template. It also replaces this node's paths in the command, because Nomad interpolates them in script checks.
func (t *remoteTask) ExecTask(command []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	link, err := t.connected()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	t.refresh(ctx, link)
	allocID, _, _ := strings.Cut(t.saved.RunID, "/")
	paths := strings.NewReplacer(t.config.AllocDir, shim.AllocDir(link.Dir, allocID))
	onHost := slices.Clone(command)
	for i, word := range onHost {
		onHost[i] = paths.Replace(word)
	}
	result, err := link.Driver.ExecTask(t.saved.RunID, onHost, timeout)
	return result, t.lostOr(link, err)
}

func (t *remoteTask) ExecTaskStreamingRaw(
	ctx context.Context, command []string, tty bool, stream drivers.ExecTaskStream,
) error {
	link, err := t.connected()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the host's command when this call returns
	defer cancel()
	return t.lostOr(link, link.Driver.ExecTaskStreamingRaw(ctx, t.saved.RunID, command, tty, stream))
}

// lostOr returns err in one line if the host has returned it, and otherwise an error that the connection was lost.
func (t *remoteTask) lostOr(link *host.Link, err error) error {
	if err == nil {
		return nil
	}
	if link.Alive() {
		return errors.New(plain.Line(err.Error(), maxMessage))
	}
	return fmt.Errorf("the connection to endpoint %q was lost, which ended the command", t.saved.Endpoint)
}
