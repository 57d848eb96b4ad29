// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package trash destroys what the trash has kept long enough. It runs in the device plugin's process, the only one that
// lives as long as the agent.
package trash

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

const (
	period  = time.Minute      // between looks
	save    = 10 * time.Minute // between notes of how much time has passed
	gather  = 2 * time.Second  // between a wish for a look and the look
	limit   = time.Minute      // for what is done to one dataset
	patient = 10 * time.Second // for a list; the next look tries again
)

// Keeper empties the trash of one node.
type Keeper struct {
	// Engines returns the classes that can be used now, by name. It is called at each look.
	Engines func() map[string]*engine.Engine

	// Say logs an error when it is new, and its end when there is none. About is what it is about.
	Say func(about, consequence string, err error)

	// Soon asks for a look before the next one is due, as for what has just been put into the
	// trash for no time. May be nil.
	Soon <-chan struct{}

	now   func() time.Time     // for tests
	began map[string]time.Time // since when the time is counted that is in no tag, by dataset
}

// Run works until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for ctx.Err() == nil {
		k.Look(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-k.Soon:
			select {
			case <-ctx.Done():
			case <-time.After(gather):
			}
		}
	}
}

// Look does what is due now.
func (k *Keeper) Look(ctx context.Context) {
	if k.began == nil {
		k.began = map[string]time.Time{}
	}
	for class, e := range k.Engines() {
		e.SweepLocks()
		limited, cancel := context.WithTimeout(ctx, patient)
		all, err := e.List(limited)
		cancel()
		k.Say("trash of "+class, "the datasets of class "+class+" can't be listed", err)
		if err == nil {
			k.empty(ctx, class, e, all)
		}
	}
}

// empty does what is due in one class. A pool that does not answer is left until the next look.
func (k *Keeper) empty(ctx context.Context, class string, e *engine.Engine, all []engine.Dataset) {
	there := map[string]bool{}
	for _, d := range all {
		there[class+"/"+d.Name] = engine.InTrash(d.Name)
	}
	for key := range k.began {
		if strings.HasPrefix(key, class+"/") && !there[key] {
			delete(k.began, key)
			k.Say(key, "", nil)
		}
	}
	for _, d := range all {
		if ctx.Err() != nil || !engine.InTrash(d.Name) {
			continue
		}
		key := class + "/" + d.Name
		err := k.expire(ctx, e, d, key)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, engine.ErrNotFound) {
			err = nil // it was restored or emptied meanwhile
		}
		k.Say(key, d.Name+" stays in the trash of class "+class, err)
		if errors.Is(err, engine.ErrUnavailable) {
			return
		}
	}
}

// expire destroys what the trash need not keep any more. Only the time counts in which a Keeper runs, by a clock that
// does not leap (CLOCK_MONOTONIC): a node whose time is set to next year keeps what it has.
func (k *Keeper) expire(ctx context.Context, e *engine.Engine, d engine.Dataset, key string) error {
	left, before, ends, err := d.Left()
	if err != nil {
		return fmt.Errorf("it is not clear how long: %w", err)
	}
	if !ends {
		return nil
	}
	now := time.Now()
	if k.now != nil {
		now = k.now()
	}
	if k.began[key].IsZero() {
		k.began[key] = now
	}
	passed := now.Sub(k.began[key])
	if passed < left && passed < save {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	unlock, err := e.Lock(ctx, engine.TrashLock(d.Name))
	if err != nil {
		return err
	}
	defer unlock()
	current, err := e.Get(ctx, d.Name)
	if err != nil || current.Waits() { // restored since it was listed
		return err
	}
	if passed >= left {
		return e.Destroy(ctx, d.Name)
	}
	err = e.Tag(ctx, d.Name, engine.Tags{engine.Passed: (before + passed).String()})
	if err != nil {
		return err
	}
	k.began[key] = now
	return nil
}
