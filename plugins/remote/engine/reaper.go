// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Reaped is what the reaper decided on an object.
type Reaped struct {
	Record *endpoint.Record
	Gone   bool   // it is ended and removed, or would be
	Reason string // for either
	Err    error  // why it could not be ended
}

// reapAlways looks at an endpoint again and again, at times that differ between nodes.
func (e *Engine) reapAlways(ctx context.Context, name string) {
	every := e.o.ReapEvery
	for pause := rand.N(every) + 1; sleep(ctx, pause) == nil; pause = every*3/4 + rand.N(every/2) {
		if _, err := e.Reap(ctx, name, false); err != nil && ctx.Err() == nil {
			e.o.Logger.Debug("the reaper can't look at an endpoint", "endpoint", name, "error", err)
		}
	}
}

// Reap ends and removes what nobody wants at an endpoint, or with dry only tells. It acts on
// positive evidence alone, and never on objects that may be another cluster's.
func (e *Engine) Reap(ctx context.Context, name string, dry bool) ([]Reaped, error) {
	ep, err := e.o.Endpoint(name)
	if err != nil {
		return nil, err
	}
	records, err := list(ctx, ep)
	if err != nil {
		return nil, fmt.Errorf("failed to list the objects of endpoint %s: %w", name, err)
	}
	me := endpoint.Owner{Node: e.o.Node, TaskID: fmt.Sprintf("reaper/%016x", rand.Uint64())}
	var all []Reaped
	for _, r := range records {
		if r.State != endpoint.Damaged && r.Key.Cluster != e.o.Name {
			continue
		}
		d := Reaped{Record: r}
		d.Gone, d.Reason = e.unwanted(ctx, name, r, records)
		if d.Gone && !dry {
			if d.Gone, d.Err = still(ctx, ep, r); d.Gone {
				d.Err = e.reapObject(ctx, ep, r, me, d.Reason)
			}
		}
		all = append(all, d)
		log := e.o.Logger.With("endpoint", name, "object", r.Name, "key", r.Key.String(), "state", r.State,
			"reason", d.Reason)
		switch {
		case d.Err != nil:
			log.Warn("the reaper could not end an object", "error", d.Err)
		case !d.Gone:
			log.Debug("the reaper leaves an object")
		case !dry:
			log.Info("the reaper has ended an object")
		}
	}
	return all, nil
}

// still reports whether an object is as r has it, without a sign of life of an owner since. Questions about other
// objects may have taken minutes.
func still(ctx context.Context, ep endpoint.Endpoint, r *endpoint.Record) (bool, error) {
	now, err := ep.Get(ctx, r.Name)
	if errors.Is(err, endpoint.ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return now.Is(r.Ref()) && now.State == r.State && idleFor(now) >= idleFor(r), nil
}

// reapObject ends an object, unless an owner has taken it over meanwhile.
func (e *Engine) reapObject(
	ctx context.Context, ep endpoint.Endpoint, r *endpoint.Record, me endpoint.Owner, reason string,
) error {
	ctx, cancel := context.WithTimeout(ctx, r.Kill.Grace+2*endMargin)
	defer cancel()
	if r.State == endpoint.Exited {
		return ep.Remove(ctx, r.Ref())
	}
	err := e.endObject(ctx, ep, r, me, "the reaper: "+reason)
	if errors.Is(err, endpoint.ErrGone) {
		return nil
	}
	return err
}

// unwanted decides whether an object can go. What is cheap to know is looked at first: Nomad
// is asked only about objects that nobody has owned for a while.
func (e *Engine) unwanted(ctx context.Context, at string, r *endpoint.Record, all []*endpoint.Record) (bool, string) {
	idle := idleFor(r)
	switch {
	case r.Busy:
		return false, "it could not be looked at: " + r.Reason
	case r.State == endpoint.Damaged:
		return false, "its record is damaged: a person has to decide (" + r.Reason + ")"
	case isEnding(r) && (r.State == endpoint.Exited || idle > 0):
		return true, "its end was begun and not completed: " + r.Reason
	case idle <= 0:
		return false, "it has an owner"
	case r.State != endpoint.Exited && r.Orphan > 0 && idle >= r.Orphan:
		return true, fmt.Sprintf("it is without an owner for %s, and its orphan_timeout is %s",
			idle.Round(time.Second), r.Orphan)
	case idle < e.o.ReapAfter:
		return false, fmt.Sprintf("it has had no owner for %s only", idle.Round(time.Second))
	case r.Orphan > 0 && idle >= r.Orphan: // not sooner: an owner or the next one may be about to tell of the exit
		return true, fmt.Sprintf("it ended %s ago, and its orphan_timeout is %s", idle.Round(time.Second), r.Orphan)
	case r.State == endpoint.Exited && r.Told:
		return true, "it has ended, and Nomad was told how"
	}
	orphan, reason := e.o.Cluster.Orphan(ctx, r, func(name string) bool { return name != at && e.elsewhere(ctx, name, r) })
	if orphan {
		return true, reason
	}
	if why := e.useless(ctx, r, all); why != "" {
		return true, why
	}
	return false, reason
}

// elsewhere reports whether an endpoint is certainly another one than where an object is: two names may be of one.
func (e *Engine) elsewhere(ctx context.Context, name string, r *endpoint.Record) bool {
	ep, err := e.o.Endpoint(name)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	there, err := ep.Get(ctx, r.Name)
	return errors.Is(err, endpoint.ErrGone) || err == nil && there.State != endpoint.Damaged && !there.Is(r.Ref())
}

// idleFor is how long an object has been without an owner, not positive if it has one.
func idleFor(r *endpoint.Record) time.Duration {
	if r.State == endpoint.Released || r.State == endpoint.Exited {
		return r.Age
	}
	return -r.Lease
}

// useless finds out by the allocations why nobody will come for an object of a job that runs:
// Nomad knows how it ended, or another object of the same name has the place.
func (e *Engine) useless(ctx context.Context, r *endpoint.Record, all []*endpoint.Record) string {
	ask := func(o *endpoint.Record) Alloc {
		return e.alloc(ctx, Asker{Namespace: o.Key.Namespace, Job: o.Key.Job, Task: o.Key.Task}, o.Owner)
	}
	owner := ask(r)
	if owner.State != Ended && owner.State != NotFound || owner.Canary {
		return ""
	}
	switch {
	case r.GivenUp:
	case r.State == endpoint.Exited && owner.Told:
		return "it has ended, and Nomad knows how"
	case r.State != endpoint.Exited && owner.Stopped:
		return "its stop could not reach it"
	}
	for _, o := range all {
		if o.Name == r.Name || o.Key != r.Key || o.State != endpoint.Running || o.Lease <= 0 || isEnding(o) {
			continue
		}
		if a := ask(o); a.State == Alive && a.Wanted && !a.Canary {
			return fmt.Sprintf("allocation %s runs object %s in its place", short(o.Owner.Alloc), o.Name)
		}
	}
	return ""
}
