// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The bounds of a stop, besides the time that Nomad gives.
const (
	ownerTime   = 2 * time.Second  // for the question who owns the object
	flushTime   = 3 * time.Second  // for changed files, before a release
	releaseTime = 10 * time.Second // for an endpoint that can't be reached, at a release
	stopMargin  = 20 * time.Second // the same at a stop, after the kill timeout
	retryEvery  = 300 * time.Millisecond
)

// Stop is part of driver.Stopper. Nomad's answer decides what it does: it stops the object, or
// releases it for the next owner. If another allocation owns the object by now, it leaves it
// alone. Each ends the task. When the endpoint can't be reached, Stop returns after the timeout
// and 20 s: the task is then lost, not stopped, and its stop goes on in the background.
func (t *remoteTask) Stop(ctx context.Context, timeout time.Duration, signal string) error {
	t.stopping.Lock()
	defer t.stopping.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.engine.ctx, cancel)()
	if t.hasEnded() {
		return nil
	}
	asked := make(chan Decision, 1)
	go func() { asked <- t.engine.o.Cluster.Why(ctx, t.saved.Asker, t.saved.Stop) }()
	mine := t.stillMine(ctx)
	d := <-asked
	switch {
	case t.hasEnded():
		return nil
	case !mine:
		t.leave(d.Reason)
		return nil
	case d.Action == Stop:
		return t.end(ctx, timeout, signal, d.Reason)
	}
	return t.release(ctx, d.Reason) // also with NotMine, if nobody has taken the object over yet
}

func (t *remoteTask) hasEnded() bool {
	select {
	case <-t.Ended():
		return true
	default:
		return false
	}
}

// stillMine is false only if the endpoint tells so.
func (t *remoteTask) stillMine(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, ownerTime)
	defer cancel()
	ref, foreign := t.owned()
	if r, err := t.ep.Get(ctx, ref.Name); err == nil {
		return t.see(r)
	}
	return !foreign
}

// leave ends a task whose object another start owns.
func (t *remoteTask) leave(reason string) {
	t.event("Left object %s of endpoint %s alone, which is not this allocation's any more: %s",
		t.saved.Object.Name, t.saved.Endpoint, cmp.Or(reason, "another one has taken it over"))
	t.endWith(&task.Exit{})
}

// release gives the object up. Output up to then is this allocation's, what follows is the
// next owner's.
func (t *remoteTask) release(ctx context.Context, reason string) error {
	ref, _ := t.owned()
	fctx, fcancel := context.WithTimeout(ctx, flushTime)
	if err := t.putChanged(fctx, ref); err != nil {
		t.engine.o.Logger.Warn("failed to copy changed files before a release", "object", ref.Name, "error", err)
	}
	fcancel()
	m := endpoint.Mutable{Logs: t.giveUpOutput()}
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	for {
		ref, _ := t.owned()
		err := t.ep.Release(ctx, ref, m, reason)
		if err == nil {
			t.released(reason)
			return nil
		}
		// whether the call before had an effect shows
		r, gerr := t.ep.Get(ctx, ref.Name)
		switch {
		case gerr == nil && r.State == endpoint.Damaged:
			t.see(r)
			return nil
		case gerr == nil && t.isMine(r) && r.GivenUp:
			t.released(reason)
			return nil
		case gerr == nil && !t.isMine(r), errors.Is(gerr, endpoint.ErrGone):
			t.leave(reason)
			return nil
		case gerr == nil && r.State == endpoint.Exited:
			t.setGivenUp(false)
			t.startPump(r.Logs)
			t.see(r)
			t.finish(r)
			return nil
		case gerr == nil:
			t.see(r) // perhaps with a new epoch
		}
		if sleep(ctx, retryEvery) != nil {
			t.event("Endpoint %s can't be reached, so the task could not be released (%s): it runs on there, "+
				"and another allocation may take it over when its lease of %s has run out: %v",
				t.saved.Endpoint, reason, t.engine.o.Lease, err)
			t.endWith(&task.Exit{})
			return nil
		}
	}
}

func (t *remoteTask) released(reason string) {
	t.event("Released object %s of endpoint %s, where the task runs on: %s", t.saved.Object.Name, t.saved.Endpoint, reason)
	t.endWith(&task.Exit{})
}

// end stops the object.
func (t *remoteTask) end(ctx context.Context, timeout time.Duration, signal, reason string) error {
	t.event("Stopping object %s of endpoint %s: %s", t.saved.Object.Name, t.saved.Endpoint, reason)
	until, cancel := context.WithTimeout(ctx, timeout+stopMargin)
	defer cancel()
	signal = cmp.Or(signal, t.saved.Kill.Signal)
	for {
		ref, foreign := t.owned()
		if foreign {
			t.leave("")
			return nil
		}
		r, err := t.ep.Stop(until, ref, signal, timeout, reason)
		switch {
		case err == nil:
			t.see(r)
			t.finish(r)
			return nil
		case errors.Is(err, endpoint.ErrGone):
			t.endWith(&task.Exit{Lost: true, Reason: "its object is not at endpoint " + t.saved.Endpoint + " any more"})
			return nil
		case errors.Is(err, endpoint.ErrEpoch):
			t.lookAgain(until)
		}
		if t.hasEnded() {
			return nil // the watch saw it
		}
		if sleep(until, retryEvery) != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			t.event("Endpoint %s can't be reached, so the task could not be stopped. It is stopped as soon as it is "+
				"reached again, by this node, the next start or the reaper: %v", t.saved.Endpoint, err)
			t.engine.endLater(t.ep, &pending{
				endpoint: t.saved.Endpoint, run: t.run(), ref: ref, signal: signal, grace: timeout, reason: reason,
			})
			t.endWith(&task.Exit{Lost: true, Reason: "endpoint " + t.saved.Endpoint +
				" can't be reached, and the task may still run there"})
			return nil
		}
	}
}

// place is where an object is: a task has one of the same name at each endpoint.
type place struct{ endpoint, object string }

// pending is an object that was to be stopped when its endpoint could not be reached.
type pending struct {
	endpoint string
	run      string
	ref      endpoint.Ref
	signal   string
	grace    time.Duration
	reason   string
}

// endLater stops and removes an object when its endpoint is reached again, unless another
// owner has taken it over by then. A start of the same task here ends it first. It lasts as
// long as this process, and is not saved: after that the replacement's start, on any node, or
// the reaper ends the object, by Nomad's word.
func (e *Engine) endLater(ep endpoint.Endpoint, p *pending) {
	at := place{p.endpoint, p.ref.Name}
	e.mu.Lock()
	e.ends[at] = p
	e.mu.Unlock()
	e.spawn(func() {
		for pause := time.Second; sleep(e.ctx, pause) == nil; pause = min(2*pause, 30*time.Second) {
			ctx, cancel := context.WithTimeout(e.ctx, p.grace+stopMargin)
			_, err := ep.Stop(ctx, p.ref, p.signal, p.grace, p.reason)
			if err == nil {
				err = ep.Remove(ctx, p.ref)
			}
			cancel()
			switch {
			case err == nil:
				e.sees(p.run, true)
				e.o.Logger.Info("stopped a task whose endpoint could not be reached before", "object", p.ref.Name,
					"endpoint", p.endpoint, "reason", p.reason)
			case errors.Is(err, endpoint.ErrGone), errors.Is(err, endpoint.ErrEpoch):
				e.o.Logger.Info("a task that could not be stopped is another owner's by now", "object", p.ref.Name,
					"endpoint", p.endpoint, "error", err)
			default:
				continue
			}
			break
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.ends[at] == p {
			delete(e.ends, at)
		}
	})
}
