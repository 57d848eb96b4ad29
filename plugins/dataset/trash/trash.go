// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package trash destroys datasets in the trash once their time is over. It runs in the device plugin's process, the
// only process that lives as long as the agent.
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
	period  = time.Minute      // time between looks
	save    = 10 * time.Minute // time between updates of the tag engine.Passed
	gather  = 2 * time.Second  // time from a request by Soon to the look
	limit   = time.Minute      // timeout for one dataset
	patient = 10 * time.Second // timeout for the list of a class; the next look tries again
)

// Keeper empties the trash of one node.
type Keeper struct {
	// Engines is called at each look. It returns the engines of the classes that can be used now, by class.
	Engines func() map[string]*engine.Engine

	// Say logs err if it is new for the subject in about. If err is nil, Say logs that the subject's error is over.
	Say func(about, consequence string, err error)

	// Soon requests an early look, for example after a Discard with a short time. It may be nil.
	Soon <-chan struct{}

	now   func() time.Time     // for tests
	began map[string]time.Time // start of the time that is not yet in the tag engine.Passed, by class/dataset
}

// Run looks at the trash periodically until the context ends.
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

// Look destroys the datasets whose time is over, and updates the tags of the others.
func (k *Keeper) Look(ctx context.Context) {
	if k.began == nil {
		k.began = map[string]time.Time{}
	}
	for class, e := range k.Engines() {
		e.SweepLocks()
		limited, cancel := context.WithTimeout(ctx, patient)
		all, err := e.List(limited)
		cancel()
		k.Say("trash of "+class, "failed to list the datasets of class "+class, err)
		if err == nil {
			k.empty(ctx, class, e, all)
		}
	}
}

// empty does the work of Look for one class. If the pool is unavailable, it leaves the rest to the next look.
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
			err = nil // the dataset was restored or destroyed since it was listed
		}
		k.Say(key, d.Name+" stays in the trash of class "+class, err)
		if errors.Is(err, engine.ErrUnavailable) {
			return
		}
	}
}

// expire destroys a dataset once its time in the trash is over. Only the time during which a Keeper runs counts. It is
// measured with CLOCK_MONOTONIC, so nothing is destroyed if somebody sets the node's clock to next year.
func (k *Keeper) expire(ctx context.Context, e *engine.Engine, d engine.Dataset, key string) error {
	left, before, ends, err := d.Left()
	if err != nil {
		return fmt.Errorf("failed to read its time in the trash: %w", err)
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
	ctx, unlock, err := e.Lock(ctx, engine.TrashLock(d.Name), limit)
	if err != nil {
		return err
	}
	defer unlock()
	current, err := e.Get(ctx, d.Name)
	if err != nil || current.Waits() { // an operator has restored it since it was listed
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
