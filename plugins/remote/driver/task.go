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

// remoteTask is a task on a host. From the time when an agent knows of it, run follows it there, over one connection
// after the other, until it has ended.
type remoteTask struct {
	config *drivers.TaskConfig // what is needed of it, with the allocation's directory on this node
	engine *engine
	host   *host.Host
	saved  saved
	event  core.Event
	ctx    context.Context // until the task is destroyed
	cancel context.CancelFunc

	core.Ending

	running sync.Once
	parted  atomic.Bool // the run is another allocation's, or nobody's

	claiming sync.Mutex // held while the host is asked for the run, or to give it up

	copied  atomic.Int64 // counts parts of the output
	copying sync.Mutex   // held while files are copied to the host

	minute time.Time // that began with an event of the host
	events int       // since then

	wanted bool // shim.ClaimRequest.Wanted, where this process starts the task

	mu      sync.Mutex
	stop    *stop  // asked for, nil if the task is to run
	takenBy string // the allocation that has the run, empty if it is this task's
}

// saved is what Nomad keeps of a task. Fields are only ever added.
type saved struct {
	Endpoint string `json:"endpoint"`
	Key      string `json:"key"`  // see shim.ClaimRequest
	Hash     string `json:"hash"` // the same
	RunID    string `json:"run_id"`
	Logs     logs   `json:"logs"`

	Copied time.Time `json:"copied"` // how new the files are that were copied to the host

	OnDrain       string        `json:"on_drain"`
	OnLost        string        `json:"on_lost"`
	OrphanTimeout time.Duration `json:"orphan_timeout"`
}

// stop is how a task is to be stopped.
type stop struct {
	timeout time.Duration
	signal  string
}

var (
	_ core.Claimer   = (*remoteTask)(nil)
	_ core.Describer = (*remoteTask)(nil)
	_ core.Forwarder = (*remoteTask)(nil)
	_ core.Saver     = (*remoteTask)(nil)
	_ core.Stopper   = (*remoteTask)(nil)
)

// Saved is part of core.Saver.
func (t *remoteTask) Saved() ([]byte, error) { return json.Marshal(t.saved) }

// Claim is part of core.Claimer. The run is claimed on the host when it is followed.
func (t *remoteTask) Claim() error {
	t.running.Do(func() { go t.run() })
	return nil
}

// Describe is part of core.Describer.
func (t *remoteTask) Describe(r *core.Run) {
	r.Attributes = map[string]string{"endpoint": t.saved.Endpoint}
	if link := t.host.Connected(); link != nil && link.Address != "" {
		r.Network = &drivers.DriverNetwork{IP: link.Address}
	}
}

const (
	quietTime  = 5 * time.Second  // how long a connection may be lost before the task's events say so
	outputTime = 30 * time.Second // how long an exit waits for output of which nothing arrives, as on a full disk
	againTime  = 5 * time.Second  // the pause after an error of the host that may pass
	doubtTime  = 5 * time.Minute  // how long such errors may go on before the task counts as lost
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
			t.End(cmp.Or(f.exit, exit)) // what the host has once told counts
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
	case <-t.ctx.Done():
		return true
	default:
		return false
	}
}

// following is what run knows.
type following struct {
	*remoteTask
	exit   *task.Exit // that the host has told, while the end of the output is to come
	doubts time.Time  // since when the host can't take the task over
}

// connect waits for a connection, and tells of a long wait. Where the exit is known, it waits no longer than for
// output.
func (f *following) connect() (*host.Link, error) {
	ctx := f.ctx
	if f.exit != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(f.ctx, outputTime)
		defer cancel()
	}
	silence := time.AfterFunc(quietTime, func() {
		f.event("There is no connection to endpoint %q; the task goes on there", f.saved.Endpoint)
	})
	link, err := f.host.Keep(ctx)
	if !silence.Stop() && err == nil {
		f.event("Connected to endpoint %q again", f.saved.Endpoint)
	}
	return link, err
}

// follow takes the task over by this connection, and returns how it ended, or nil when it has to be followed anew.
func (f *following) follow(link *host.Link) *task.Exit {
	begun := time.Now()
	mine, err := f.reclaim(f.ctx, link)
	if status.Code(err) == codes.NotFound && link.Alive() {
		return lost("the host does not have it any more: " + plain.Line(status.Convert(err).Message(), mostOfReason))
	}
	if err != nil {
		return f.doubt(link, begun, err)
	}
	if !mine {
		select {
		case <-f.Ended():
		case <-f.ctx.Done():
		case <-time.After(takenTime): // it may be released again
		}
		return nil
	}
	ctx, cancel := context.WithCancel(f.ctx)
	output := make(chan struct{})
	go func() {
		defer close(output)
		if err := f.copyOutput(ctx, link); err != nil {
			f.event("The output is not copied any more: %v", err)
		}
	}()
	defer func() {
		cancel()
		<-output // the next one goes on where it ends
	}()
	go func() { _ = f.stopOn(link) }() // which may not have reached the host by an earlier connection
	results, err := link.Driver.WaitTask(ctx, f.saved.RunID)
	if err != nil {
		return f.doubt(link, begun, err)
	}
	result := <-results
	if f.ctx.Err() != nil {
		return nil
	}
	if _, ofCall := status.FromError(result.Err); result.Err != nil && (ofCall || !link.Alive()) {
		return f.doubt(link, begun, result.Err) // of the call: the host's own word has no code
	}
	if f.exit == nil {
		// all connections to the host are told an exit: is it still this allocation's?
		mine, err := f.reclaim(f.ctx, link)
		if !mine || err != nil {
			return nil
		}
		f.exit = f.exitOf(result)
	}
	if !f.waitOutput(link, output) {
		return nil // the next connection brings the rest
	}
	return f.exit
}

// doubt is for an error of the host, or of the connection, after an attempt that began at this time. If the host
// goes on with errors the task is lost.
func (f *following) doubt(link *host.Link, begun time.Time, err error) *task.Exit {
	if f.ctx.Err() != nil || !link.Alive() {
		return nil
	}
	if f.doubts.IsZero() || time.Since(begun) > againTime { // the first, or the first after a time without
		f.doubts = time.Now()
	}
	if time.Since(f.doubts) > doubtTime {
		return lost("the host can't take it over: " + plain.Line(err.Error(), mostOfReason))
	}
	select {
	case <-time.After(againTime):
	case <-f.ctx.Done():
	}
	return nil
}

// waitOutput waits for the end of the output, which the host sends when the task has ended. It returns false when the
// connection ends before.
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
			f.event("The end of the output is missing: nothing of it arrived for %v", outputTime)
			return true
		}
	}
}

// mostOfReason is how many characters of the words of a host, or of Nomad, are shown.
const mostOfReason = 500

// exitOf is the exit that a host tells. What it says besides becomes events.
func (t *remoteTask) exitOf(r *drivers.ExitResult) *task.Exit {
	message := ""
	if r.Err != nil {
		message = plain.Line(r.Err.Error(), mostOfReason)
	}
	if reason, ok := strings.CutPrefix(message, "task is lost: "); ok { // internal/core/driver, exitResult
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
		return lost(fmt.Sprintf("the host tells no valid exit: code %d, signal %d", r.ExitCode, r.Signal))
	}
	return exit
}

func lost(reason string) *task.Exit { return &task.Exit{Lost: true, Reason: reason, At: time.Now()} }

// ofCore are the events that the core on this node makes by itself.
var ofCore = []string{"Killed by signal ", "Lost: ", "Re-attached "}

// told is called with the events of the host's driver, by one goroutine. It shows few, since Nomad writes each to its
// disk.
func (t *remoteTask) told(message string) {
	if time.Since(t.minute) > time.Minute {
		t.minute, t.events = time.Now(), 0
	}
	t.events++
	ours := slices.ContainsFunc(ofCore, func(prefix string) bool { return strings.HasPrefix(message, prefix) })
	if !ours && t.events <= 30 && !t.parted.Load() {
		t.event("%s", plain.Line(message, mostOfReason))
	}
}

// Signal is part of core.Task. It may tell the task that a template has changed.
func (t *remoteTask) Signal(_ context.Context, signal string) error {
	link, err := t.connected()
	if err != nil {
		return err
	}
	t.refresh(t.ctx, link)
	return link.Driver.SignalTask(t.saved.RunID, signal)
}

// connected is the connection that there is. Nobody waits for another one.
func (t *remoteTask) connected() (*host.Link, error) {
	if link := t.host.Connected(); link != nil {
		return link, nil
	}
	return nil, fmt.Errorf("endpoint %q can't be reached now", t.saved.Endpoint)
}

// stopGrace is how long, after the kill timeout, a stop waits for a host that can't be reached.
const stopGrace = 30 * time.Second

// Stop is part of core.Stopper. What it does is what Nomad means by it. A host that can't be reached is asked again as
// soon as it can, also after an error here.
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

// meant is what Nomad means by ending the task. What was once to be stopped is not asked again.
func (t *remoteTask) meant(ctx context.Context) meaning {
	t.mu.Lock()
	stopped := t.stop != nil
	t.mu.Unlock()
	if stopped {
		return meaning{}
	}
	return t.engine.nomad.ask(ctx, &t.saved, t.config.AllocID)
}

// end stops the task on its host.
func (t *remoteTask) end(ctx context.Context, timeout time.Duration, signal string) error {
	t.mu.Lock()
	t.stop = &stop{timeout: timeout, signal: signal}
	t.mu.Unlock()
	limit := time.After(timeout + stopGrace)
	link, err := t.connected()
	if err == nil {
		err = t.stopOn(link) // it returns at the task's end, or the connection's
		if err != nil && link.Alive() {
			return errors.New(plain.Line(err.Error(), mostOfReason)) // the host's own
		}
	}
	select {
	case <-t.Ended():
		return nil
	case <-limit:
		return fmt.Errorf("the task is stopped when endpoint %q can be reached: %w", t.saved.Endpoint,
			cmp.Or(err, errors.New("the host has not told its exit")))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stopOn has the host stop the task, if that is asked for. From then on nobody claims the run.
func (t *remoteTask) stopOn(link *host.Link) error {
	t.mu.Lock()
	s := t.stop
	t.mu.Unlock()
	if s == nil {
		return nil
	}
	err := t.become(t.ctx, link, shim.Stopping)
	if status.Code(err) == codes.FailedPrecondition { // it is not this connection's yet, or another allocation's
		mine, err := t.reclaim(t.ctx, link)
		if err != nil || !mine {
			return err
		}
		return t.stopOn(link)
	}
	if err != nil {
		return err
	}
	return link.Driver.StopTask(t.saved.RunID, s.timeout, s.signal)
}

// TaskStats is part of core.Forwarder. After the end of the channel, as when the connection ends, Nomad asks again.
func (t *remoteTask) TaskStats(ctx context.Context, interval time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	link, err := t.connected()
	if err == nil {
		usages, err := link.Driver.TaskStats(ctx, t.saved.RunID, interval)
		if err == nil {
			return usages, nil
		}
	}
	none := make(chan *drivers.TaskResourceUsage)
	close(none) // Nomad would log an error every few seconds
	return none, nil
}

// ExecTask is part of core.Forwarder. The command may be the script of a template that has changed.
func (t *remoteTask) ExecTask(command []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	link, err := t.connected()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	t.refresh(ctx, link)
	result, err := link.Driver.ExecTask(t.saved.RunID, command, timeout)
	return result, t.lostOr(link, err)
}

// ExecTaskStreamingRaw is part of core.Forwarder.
func (t *remoteTask) ExecTaskStreamingRaw(
	ctx context.Context, command []string, tty bool, stream drivers.ExecTaskStream,
) error {
	link, err := t.connected()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the host's command when the agent's side is gone
	defer cancel()
	return t.lostOr(link, link.Driver.ExecTaskStreamingRaw(ctx, t.saved.RunID, command, tty, stream))
}

// lostOr is an error of the host, or that there is no connection any more.
func (t *remoteTask) lostOr(link *host.Link, err error) error {
	if err == nil {
		return nil
	}
	if link.Alive() {
		return errors.New(plain.Line(err.Error(), mostOfReason))
	}
	return fmt.Errorf("the connection to endpoint %q was lost, and with it the command", t.saved.Endpoint)
}
