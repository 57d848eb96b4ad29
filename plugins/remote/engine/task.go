// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// saved is what Nomad keeps of a task for Recover.
type saved struct {
	Endpoint string         `json:"endpoint"`
	Object   endpoint.Ref   `json:"object"` // as this start got it
	Key      endpoint.Key   `json:"key"`
	Hash     string         `json:"hash"`
	Owner    endpoint.Owner `json:"owner"`

	Address string         `json:"address,omitempty"`
	Ports   map[string]int `json:"ports,omitempty"`
	Asker   Asker          `json:"asker"`
	Stop    StopOptions    `json:"stop"`
	Kill    endpoint.Kill  `json:"kill"`
	Dirs    taskDirs       `json:"dirs"`
	Output  output         `json:"output"`
}

// remoteTask is a start of a task that owns an object, or owned it.
type remoteTask struct {
	driver.Ending
	engine *Engine
	ep     endpoint.Endpoint
	event  driver.Event
	saved  saved

	ctx    context.Context // of everything that goes on for it
	cancel context.CancelFunc

	stopping sync.Mutex // held by Stop

	// finishing is a lock that is held during finish. It is a channel for the reason that pump.storing is one.
	finishing chan struct{}

	files   copier
	samples samples

	mu          sync.Mutex
	ref         endpoint.Ref
	record      *endpoint.Record // as it was last seen, nil if it was not
	foreign     bool             // another start owns the object
	pump        *pump            // nil if it is not this start's to copy
	givenUp     bool             // a release is under way: it is the next owner's
	unreachable time.Time        // since when, zero while it can be reached
	toldAway    bool             // an event told of that
	goneSince   time.Time        // when the object was first missing
}

var (
	_ driver.Describer = (*remoteTask)(nil)
	_ driver.Saver     = (*remoteTask)(nil)
	_ driver.Stopper   = (*remoteTask)(nil)
	_ driver.Task      = (*remoteTask)(nil)
)

// begin follows an object that this start owns. ctx is set before.
func (t *remoteTask) begin(r *endpoint.Record) {
	t.saved.Object = r.Ref()
	t.ref, t.record = r.Ref(), r
	t.startPump(r.Logs)
	t.attend()
}

// attend begins what goes on for the task, until it has ended or is destroyed.
func (t *remoteTask) attend() {
	t.engine.spawn(t.watch)
	t.engine.spawn(t.renew)
}

// Saved is part of driver.Saver. It leaves the token out, which Nomad keeps in the task's environment.
func (t *remoteTask) Saved() ([]byte, error) {
	s := t.saved
	s.Asker.Token = ""
	return json.Marshal(s)
}

// Describe is part of driver.Describer.
func (t *remoteTask) Describe(r *driver.Run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Attributes = map[string]string{
		"endpoint": t.saved.Endpoint, "object": t.ref.Name, "epoch": fmt.Sprint(t.ref.Epoch),
	}
	ports := t.saved.Ports
	if rec := t.record; rec != nil {
		for name, v := range rec.More {
			r.Attributes[name] = v
		}
		if rec.PID != 0 {
			r.Attributes["pid"] = fmt.Sprint(rec.PID)
		}
		if len(rec.Ports) > 0 {
			ports = rec.Ports
		}
	}
	if ip := t.saved.Address; ip != "" {
		r.Network = &drivers.DriverNetwork{IP: ip, PortMap: ports, AutoAdvertise: true}
	}
}

// Signal is part of driver.Task. Files that a template changed are copied first.
func (t *remoteTask) Signal(ctx context.Context, signal string) error {
	ref, foreign := t.owned()
	if foreign {
		return fmt.Errorf("failed to signal task: %w", endpoint.ErrEpoch)
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if err := t.putChanged(ctx, ref); err != nil {
		t.event("The task's changed files could not be copied: %v", err)
	}
	if err := t.ep.Signal(ctx, ref, signal); err != nil {
		return fmt.Errorf("failed to signal task: %w", briefError{err})
	}
	return nil
}

// run names all starts of this allocation's task.
func (t *remoteTask) run() string { return runOf(t.saved.Owner.Alloc, t.saved.Key.Task) }

// owned is the object as this start knows it, and whether another one owns it.
func (t *remoteTask) owned() (ref endpoint.Ref, foreign bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ref, t.foreign
}

// isMine reports whether this start owns an object. The epoch alone does not tell: the answer
// to a Take may have been lost.
func (t *remoteTask) isMine(r *endpoint.Record) bool { return r.Owner.TaskID == t.saved.Owner.TaskID }

// see takes a record as the latest of the object, and reacts to a change of the owner. It returns false
// if another start owns the object, and for a damaged record, which also ends the task.
func (t *remoteTask) see(r *endpoint.Record) bool {
	if r.State == endpoint.Damaged {
		t.endWith(t.damaged(r))
		return false
	}
	mine := t.isMine(r)
	t.mu.Lock()
	was := t.foreign
	t.record, t.foreign, t.goneSince = r, !mine, time.Time{}
	if mine {
		t.ref = r.Ref()
	}
	t.mu.Unlock()
	switch {
	case was && mine && !r.GivenUp:
		t.startPump(r.Logs)
		t.event("This allocation owns object %s of endpoint %s again", r.Name, t.saved.Endpoint)
	case !was && !mine:
		t.stopPump()
		t.yield(r)
		t.event("Not this allocation's task any more: %s has taken over object %s of endpoint %s",
			OwnerOf(r), r.Name, t.saved.Endpoint)
	}
	return mine
}

// OwnerOf is the owner of an object, in words.
func OwnerOf(r *endpoint.Record) string {
	switch {
	case isEnding(r) && r.Owner.Alloc == "":
		return "the reaper of node " + r.Owner.Node
	case r.Owner.Alloc == "":
		return "a person"
	}
	return fmt.Sprintf("allocation %s of node %s", short(r.Owner.Alloc), short(r.Owner.Node))
}

// watch waits for the end of the object, or of the ownership. It ends with the task.
func (t *remoteTask) watch() {
	for pause := time.Duration(0); sleep(t.ctx, pause) == nil; {
		ref, foreign := t.owned()
		if foreign {
			pause = t.engine.o.Lease / 3
			if t.reclaim() {
				return
			}
			continue
		}
		r, err := t.next(ref)
		switch {
		case t.ctx.Err() != nil:
			return
		case errors.Is(err, endpoint.ErrGone):
			t.reached()
			if t.gone() {
				return
			}
			pause = askEvery
		case err != nil:
			t.away(err)
			pause = min(max(2*pause, 100*time.Millisecond), 10*time.Second)
		default:
			t.reached()
			pause = 10 * time.Millisecond // at most so often, whatever the endpoint returns
			mine := t.see(r)
			if mine && r.GivenUp { // a release by this process under way, by one before it, or by a person
				if t.stopping.TryLock() {
					t.released(r.Reason)
					t.stopping.Unlock()
					return
				}
				pause = askEvery
				continue
			}
			if mine && t.currentPump() == nil {
				t.startPump(r.Logs) // recovered, and reached for the first time
			}
			if mine && r.State == endpoint.Exited {
				t.finish(r)
				return
			}
		}
	}
}

// next returns the object's next change; at first, when nothing is known of it yet, its record.
func (t *remoteTask) next(ref endpoint.Ref) (*endpoint.Record, error) {
	t.mu.Lock()
	known := t.record != nil
	t.mu.Unlock()
	if !known {
		return t.ep.Get(t.ctx, ref.Name)
	}
	return t.ep.Watch(t.ctx, ref)
}

// away records that the endpoint can't be reached, which is told once when it lasts.
func (t *remoteTask) away(err error) {
	t.mu.Lock()
	now := time.Now()
	if t.unreachable.IsZero() {
		t.unreachable = now
	}
	since := t.unreachable
	tell := !t.toldAway && now.Sub(since) >= awayTime
	t.toldAway = t.toldAway || tell
	t.mu.Unlock()
	if tell {
		t.event("Endpoint %s can't be reached since %s; the task goes on there: %v",
			t.saved.Endpoint, since.Format(time.TimeOnly), err)
	}
}

// awayTime is how long an endpoint may be out of reach before an event tells of it.
const awayTime = 2 * time.Second

func (t *remoteTask) reached() {
	t.mu.Lock()
	since, told := t.unreachable, t.toldAway
	t.unreachable, t.toldAway = time.Time{}, false
	t.mu.Unlock()
	if told {
		t.event("Endpoint %s is reached again, after %s", t.saved.Endpoint, time.Since(since).Round(time.Second))
	}
}

// lastOutput is how long the end of a task may wait for the rest of its output.
const lastOutput = 30 * time.Second

// finish ends the task as its record tells. Each call returns when it has ended.
func (t *remoteTask) finish(r *endpoint.Record) {
	t.finishing <- struct{}{}
	defer func() { <-t.finishing }()
	if t.hasEnded() {
		return
	}
	if p := t.currentPump(); p != nil {
		ctx, cancel := context.WithTimeout(t.ctx, lastOutput)
		if err := p.Drain(ctx); err != nil && t.ctx.Err() == nil {
			t.event("The last output of the task could not be copied: %v", err)
		}
		cancel()
	}
	if r.Reason == endpoint.ByHand {
		t.event("Object %s of endpoint %s was stopped by hand", r.Name, t.saved.Endpoint)
	}
	if r.Exit != nil && r.Exit.OOMKilled {
		t.event("OOM: killed at endpoint %s", t.saved.Endpoint)
	}
	t.engine.sees(t.run(), true)
	t.endWith(exitOf(r))
}

// damaged is the exit of a task whose record can't be read. The next start is refused while that is so.
func (t *remoteTask) damaged(r *endpoint.Record) *task.Exit {
	return &task.Exit{Lost: true, Reason: fmt.Sprintf("the record of its object %s at endpoint %s is damaged, and it may "+
		"still run there: look with nomad-driver-remote list, and end it with nomad-driver-remote stop (%s)",
		t.saved.Object.Name, t.saved.Endpoint, brief(r.Reason))}
}

// exitOf is how an object in state Exited ended.
func exitOf(r *endpoint.Record) *task.Exit {
	if r.Exit == nil {
		return &task.Exit{Lost: true, Reason: "the endpoint does not know how it ended"}
	}
	exit := *r.Exit
	exit.Reason = brief(exit.Reason)
	return &exit
}

// mostSaid is how long a sentence is at most: Nomad's servers get it, and it may have an endpoint's words in it.
const mostSaid = 1000

func brief(text string) string {
	return plain.Line(strings.ReplaceAll(strings.TrimSpace(text), "\n", "; "), mostSaid) // joined errors are on lines
}

func briefly(event driver.Event) driver.Event {
	return func(format string, args ...any) { event("%s", brief(fmt.Sprintf(format, args...))) }
}

// briefError has no more than the beginning of a long error.
type briefError struct{ error }

func (e briefError) Error() string { return brief(e.error.Error()) }
func (e briefError) Unwrap() error { return e.error }

// endWith ends the task and all that goes on for it. Its object stays.
func (t *remoteTask) endWith(exit *task.Exit) {
	t.stopPump()
	t.End(exit)
	t.cancel()
}

// gone decides on an object that is not there any more. Another owner may have removed it, so
// Nomad is asked whether this allocation is still to run it. Without an answer it is lost
// after the time in which another owner can have been the one.
func (t *remoteTask) gone() (ended bool) {
	ctx, cancel := context.WithTimeout(t.ctx, callTime)
	defer cancel()
	me := t.engine.alloc(ctx, t.saved.Asker, t.saved.Owner)
	t.mu.Lock()
	if t.goneSince.IsZero() {
		t.goneSince = time.Now()
	}
	long := time.Since(t.goneSince) > 2*t.engine.o.Lease
	t.mu.Unlock()
	if me.State == Alive && me.Wanted || me.State == NoAnswer && long {
		t.endWith(&task.Exit{Lost: true, Reason: "its object is not at endpoint " + t.saved.Endpoint + " any more"})
		return true
	}
	return false
}

func (t *remoteTask) currentPump() *pump {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pump
}

// startPump begins to copy the output, from the marks of the record on, if that does not go on already.
func (t *remoteTask) startPump(marks map[string]endpoint.LogMark) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pump != nil || t.givenUp {
		return
	}
	t.pump = newPump(t.ctx, t.saved.Output, source{
		Read: func(ctx context.Context, stream string, from endpoint.Place, skip int64) (endpoint.LogReader, error) {
			return t.ep.Logs(ctx, t.saved.Object.Name, stream, from, skip)
		},
		Store: t.storeMarks, Event: t.event,
	}, marks)
}

// takePump returns the pump, which the caller closes.
func (t *remoteTask) takePump() *pump {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pump
	t.pump = nil
	return p
}

// giveUpOutput ends the copying for good, and returns how far it came. Where it was not begun, since the endpoint was
// away, it removes what the files have behind their marks.
func (t *remoteTask) giveUpOutput() map[string]endpoint.LogMark {
	t.mu.Lock()
	r := t.record
	t.mu.Unlock()
	if r != nil {
		t.startPump(r.Logs)
	}
	t.setGivenUp(true)
	if p := t.takePump(); p != nil {
		return p.GiveUp()
	}
	return nil
}

func (t *remoteTask) setGivenUp(yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.givenUp = yes
}

// stopPump ends the copying of output.
func (t *remoteTask) stopPump() {
	if p := t.takePump(); p != nil {
		p.Close()
	}
}

// storeMarks stores marks in the record. ErrEpoch is certain: another start owns the object.
func (t *remoteTask) storeMarks(ctx context.Context, marks map[string]endpoint.LogMark) error {
	ref, foreign := t.owned()
	if foreign {
		return endpoint.ErrEpoch
	}
	err := t.ep.Renew(ctx, ref, endpoint.Mutable{Logs: marks})
	if !errors.Is(err, endpoint.ErrEpoch) {
		return err
	}
	r, gerr := t.ep.Get(ctx, ref.Name)
	switch {
	case gerr != nil:
		return gerr
	case !t.isMine(r):
		return err
	}
	return t.ep.Renew(ctx, r.Ref(), endpoint.Mutable{Logs: marks}) // the answer to a Take was lost
}

// yield removes output from this allocation's files that another one has too.
func (t *remoteTask) yield(r *endpoint.Record) {
	if err := t.saved.Output.yield(r); err != nil {
		t.engine.o.Logger.Warn("failed to remove output that another allocation has too", "object", r.Name, "error", err)
	}
}

// Told is part of driver.Teller: Nomad has been given the exit. The record tells it to others,
// in case the object can't be removed.
func (t *remoteTask) Told(ctx context.Context) {
	e := t.engine
	t.mu.Lock()
	ref, exited := t.ref, !t.foreign && t.record != nil && t.record.State == endpoint.Exited && !t.record.GivenUp
	t.mu.Unlock()
	if !exited {
		return
	}
	e.mu.Lock()
	e.told[t.saved.Owner.TaskID] = true
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if err := t.ep.Renew(ctx, ref, endpoint.Mutable{Told: true}); err != nil {
		e.o.Logger.Warn("failed to record that Nomad was told of an exit", "object", ref.Name, "error", err)
	}
}

// destroy ends what goes on for the task, and removes its object if that is what the exit that
// Nomad was told is of.
func (t *remoteTask) destroy(ctx context.Context) {
	e, id := t.engine, t.saved.Owner.TaskID
	t.endWith(&task.Exit{Lost: true, Reason: "it runs on at endpoint " + t.saved.Endpoint + " without this allocation"})
	if !e.wasTold(id) {
		return
	}
	ref, _ := t.owned()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := t.ep.Remove(ctx, ref)
	if errors.Is(err, endpoint.ErrUnreachable) {
		e.o.Logger.Info("an object that has ended is left to the reaper", "object", ref.Name, "error", err)
		return // it stays told for a next start of this allocation
	}
	if err != nil && !errors.Is(err, endpoint.ErrEpoch) {
		e.o.Logger.Warn("failed to remove an object that has ended", "object", ref.Name, "error", err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.told, id)
}
