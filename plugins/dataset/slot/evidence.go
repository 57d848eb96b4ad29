// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package slot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/holder"
	"github.com/outrider-dev/outrider/plugins/dataset/trash"
)

// unclaimed is the age at which a reservation without an allocation counts as over, because it never started a task.
// This applies only if the API hides nothing from the token.
const unclaimed = 10 * time.Minute

// leaseState is the part of a lease that is not stored in its dataset.
type leaseState struct {
	engine datasets
	began  time.Time // when the lease began; zero: before this process
	over   bool      // the lease's end is proven
}

// apiState is the state of the API as a source of evidence that leases are over.
type apiState struct {
	err  error // why no view is available, or why the last view proves nothing
	seen bool  // the last view proves the token's rights: it is complete, or not empty
	kick func()
}

// begin records a new lease. It is called before the lease's dataset is made.
func (i *instance) begin(name string, e datasets) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.states[name] = leaseState{engine: e, began: time.Now()}
}

// state returns the state of a lease, or the zero value.
func (i *instance) state(name string) leaseState {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.states[name]
}

// remember adds the leases of a look to i.states, and removes those that are gone. The caller holds i.mu.
func (i *instance) remember(now look) {
	there := map[string]bool{}
	for _, l := range now.leases {
		there[l.Name] = true
		m := i.states[l.Name]
		m.engine = l.engine
		i.states[strings.Clone(l.Name)] = m // without Clone, the name would keep zfs's whole output in memory
	}
	maps.DeleteFunc(i.states, func(name string, m leaseState) bool {
		_, looked := now.found[m.engine]
		return looked && !there[name] && now.failed[m.engine] == nil && now.at.Sub(m.began) > makeTime
	})
}

// makeTime is how long looks may miss a new lease: begin records the lease before its dataset is made and listed.
const makeTime = 2 * time.Minute

// Events implements device.EventSource. It watches the holders of the slots, and empties the trash of all
// classes, because this process lives as long as the agent.
func (i *instance) Events(ctx context.Context, kick func()) error {
	var keeping sync.WaitGroup
	keeping.Go(func() { (&trash.Keeper{Engines: i.engines, Say: i.say, Soon: i.trash}).Run(ctx) })
	defer keeping.Wait()
	i.mu.Lock()
	i.api.kick = kick
	i.mu.Unlock()
	kick()
	for i.API.Enabled {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-i.views:
		case <-time.After(i.Sweep.Duration()):
		}
		v, err := i.API.View(ctx, Type)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			i.judge(false, err, false) // changes only the attribute "api", and no lease
		default:
			i.seen(ctx, v)
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// engines returns the engines of all classes, with or without slots.
func (i *instance) engines() map[string]*engine.Engine {
	file := i.load()
	all := map[string]*engine.Engine{}
	for name := range file.Classes {
		all[name] = file.Engine(name)
	}
	return all
}

// evidence returns the value of the attribute "api".
func (i *instance) evidence() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.API.Enabled && i.api.err == nil && i.api.seen {
		return "ok"
	}
	return "none"
}

// judge records the state of the API. It calls kick if changed is true, or if the attribute "api" gets a new value.
func (i *instance) judge(seen bool, err error, changed bool) {
	before := i.evidence()
	i.mu.Lock()
	i.api.seen, i.api.err = seen, err
	kick := i.api.kick
	i.mu.Unlock()
	i.say("api", "the API can't be used, so a slot is freed only when it is reserved again", err)
	if changed || before != i.evidence() {
		kick()
	}
}

// seen records the holders of leases, and which leases are over, as far as a view shows it. A view counts only for
// leases that began before it. When a lease began, the scheduler considered all previous holders of the slot ended, so
// a live holder in a later view has this lease.
func (i *instance) seen(ctx context.Context, v *holder.View) {
	now := i.look(ctx)
	proven, changed := v.Complete || len(v.Allocations) > 0, false
	var hidden []string
	for _, l := range now.leases {
		if l.Tags[engine.Holder] == "" && !i.record(ctx, &l, v) {
			hidden = append(hidden, l.slot())
		}
		over, err := i.ended(ctx, l, v)
		if err != nil {
			i.judge(false, err, changed)
			return
		}
		changed = i.end(l.Name, over) || changed
	}
	var err error
	if len(hidden) > 0 && !v.Complete {
		err = fmt.Errorf("the API at %s shows no allocation that holds %s: the token of api.token_file needs the policy "+
			"in the documentation, with read-job in every namespace", i.API.Address, strings.Join(hidden, ", "))
	}
	i.judge(proven, err, changed)
}

// record writes the holder of a lease into its tags if the view shows the holder. It returns false if the holder is
// hidden: the view should have an allocation with the slot, but has none.
func (i *instance) record(ctx context.Context, l *lease, v *holder.View) (shown bool) {
	if v.Began.Before(i.state(l.Name).began) {
		return true // the view is too old to show that the holder is hidden
	}
	all, live := v.Holders(l.slot())
	if live == "" {
		return len(all) > 0
	}
	a := v.Allocations[live]
	tags := engine.Tags{engine.Holder: live + "/" + a.Devices[l.slot()], engine.Namespace: a.Namespace,
		engine.Node: v.Node}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	ctx, unlock, err := l.engine.Lock(ctx, l.slot(), lookTime)
	if err == nil {
		if err = l.engine.Tag(ctx, l.Name, tags); err == nil {
			l.Tags = maps.Clone(l.Tags) // other goroutines read the map
			maps.Copy(l.Tags, tags)
		}
		unlock()
	}
	if errors.Is(err, engine.ErrNotFound) {
		err = nil // the slot was released before it was locked
	}
	i.say("holder of "+l.slot(), "failed to record the holder of slot "+l.slot(), err)
	return true
}

// ended reports whether the view proves the end of the lease.
func (i *instance) ended(ctx context.Context, l lease, v *holder.View) (bool, error) {
	id, _, known := strings.Cut(l.Tags[engine.Holder], "/")
	switch {
	case known && l.Tags[engine.Node] != v.Node:
		return false, nil // the node id has changed: no view can show the holder
	case known:
		if a, there := v.Allocations[id]; there {
			return a.Ended, nil
		}
		if i.state(l.Name).over {
			return true, nil
		}
		return i.gone(ctx, id, l.Tags[engine.Namespace])
	case !v.Complete || v.Began.Before(i.state(l.Name).began):
		return false, nil
	}
	// no live holder was seen, and nothing is hidden: the lease is over if all allocations with the slot have ended
	all, _ := v.Holders(l.slot())
	for _, id := range all {
		if !v.Allocations[id].Ended {
			return false, nil
		}
	}
	return len(all) > 0 || time.Since(l.Created) > unclaimed, nil
}

// end records whether a lease is over, and reports whether that is new.
func (i *instance) end(name string, over bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	m, there := i.states[name]
	if !there {
		return false // the lease was released after the view
	}
	news := over && !m.over
	m.over = over
	i.states[name] = m
	return news
}
