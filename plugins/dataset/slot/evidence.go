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

// unclaimed is how old a reservation is when its allocation must have been there, if nothing
// is hidden from the token. One that is not there has never started a task.
const unclaimed = 10 * time.Minute

// matter is what is known of a lease besides its dataset.
type matter struct {
	engine datasets
	began  time.Time // zero: before this process
	over   bool      // there is evidence of its end
}

// apiState is what the API is good for.
type apiState struct {
	err  error // why there is no view, or why it does not prove anything
	seen bool  // it has shown something that it could have hidden, or can hide nothing
	kick func()
}

// begin takes note of a lease that is about to be made.
func (i *instance) begin(name string, e datasets) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.matters[name] = matter{engine: e, began: time.Now()}
}

// matter is what is known of a lease, nothing if there is none of that name.
func (i *instance) matter(name string) matter {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.matters[name]
}

// remember takes a look into account. The caller holds i.mu.
func (i *instance) remember(now look) {
	there := map[string]bool{}
	for _, l := range now.leases {
		there[l.Name] = true
		m := i.matters[l.Name]
		m.engine = l.engine
		i.matters[strings.Clone(l.Name)] = m // or it keeps the whole list that it was read from
	}
	maps.DeleteFunc(i.matters, func(name string, m matter) bool {
		_, looked := now.found[m.engine]
		return looked && !there[name] && now.failed[m.engine] == nil && now.at.Sub(m.began) > makeTime
	})
}

// makeTime is more than a reservation takes from begin until its dataset is listed.
const makeTime = 2 * time.Minute

// Events is part of device.EventSource. It watches who holds the slots, and empties the trash
// of all classes, since this is the process that lives as long as the agent.
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
			i.judge(false, err, false) // nothing is known, so nothing changes but the attribute
		default:
			i.seen(ctx, v)
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// engines are those of all classes, also without slots.
func (i *instance) engines() map[string]*engine.Engine {
	file := i.load()
	all := map[string]*engine.Engine{}
	for name := range file.Classes {
		all[name] = file.Engine(name)
	}
	return all
}

// evidence is the attribute "api".
func (i *instance) evidence() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.API.Enabled && i.api.err == nil && i.api.seen {
		return "ok"
	}
	return "none"
}

// judge records what the API is good for, and kicks if that or anything else has changed.
func (i *instance) judge(seen bool, err error, changed bool) {
	before := i.evidence()
	i.mu.Lock()
	i.api.seen, i.api.err = seen, err
	kick := i.api.kick
	i.mu.Unlock()
	i.say("api", "a slot is only given back when it is reserved again", err)
	if changed || before != i.evidence() {
		kick()
	}
}

// seen takes a view into account: it records holders, and the end of leases. A view counts for a
// lease only if it began later, since then the scheduler had taken any former holder of the
// slot for ended. So what holds the slot in it holds this lease.
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

// record writes the holder into the lease's tags if the view shows it. It reports whether
// the view has any allocation that may be the holder.
func (i *instance) record(ctx context.Context, l *lease, v *holder.View) (shown bool) {
	if v.Began.Before(i.matter(l.Name).began) {
		return true // too old to say
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
	unlock, err := l.engine.Lock(ctx, l.slot())
	if err == nil {
		if err = l.engine.Tag(ctx, l.Name, tags); err == nil {
			l.Tags = maps.Clone(l.Tags) // others read it
			maps.Copy(l.Tags, tags)
		}
		unlock()
	}
	if errors.Is(err, engine.ErrNotFound) {
		err = nil // it was released meanwhile
	}
	i.say("holder of "+l.slot(), "the holder of slot "+l.slot()+" can't be recorded", err)
	return true
}

// ended reports whether the view is evidence that the lease is over.
func (i *instance) ended(ctx context.Context, l lease, v *holder.View) (bool, error) {
	id, _, known := strings.Cut(l.Tags[engine.Holder], "/")
	switch {
	case known && l.Tags[engine.Node] != v.Node:
		return false, nil // the agent has another identity since
	case known:
		if a, there := v.Allocations[id]; there {
			return a.Ended, nil
		}
		if i.matter(l.Name).over {
			return true, nil
		}
		return i.gone(ctx, id, l.Tags[engine.Namespace])
	case !v.Complete || v.Began.Before(i.matter(l.Name).began):
		return false, nil
	}
	// it ended before any view had shown it, and nothing is hidden
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
	m, there := i.matters[name]
	if !there {
		return false // it has gone meanwhile
	}
	news := over && !m.over
	m.over = over
	i.matters[name] = m
	return news
}
