// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package trash destroys what the trash has kept long enough. It runs in the device plugin's process, the only one that
// lives as long as the agent.
package trash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

const (
	period  = time.Minute      // between looks
	save    = 10 * time.Minute // between notes of how much time has passed
	gather  = 2 * time.Second  // between a wish for a look and the look
	limit   = time.Minute      // for what is done to one dataset
	patient = 10 * time.Second // for the lock of a dataset, and for a list; the next look tries again
)

// Keeper empties the trash of one node.
type Keeper struct {
	// Engines returns the classes that can be used now, by name. It is called at each look.
	Engines func(context.Context) (map[string]*engine.Engine, error)
	Logger  hclog.Logger

	// Soon asks for a look before the next one is due, as for what has just been put into the
	// trash for no time. May be nil.
	Soon <-chan struct{}

	now   func() time.Time     // for tests
	began map[string]time.Time // since when the time is counted that is in no tag, by dataset
	said  map[string]string    // what has been logged and still holds, by dataset
}

// Run works until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	k.start()
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

func (k *Keeper) start() {
	k.said, k.began = map[string]string{}, map[string]time.Time{}
	if k.now == nil {
		k.now = time.Now
	}
}

// Look does what is due now.
func (k *Keeper) Look(ctx context.Context) {
	engines, err := k.Engines(ctx)
	k.say("", "the trash can't be emptied", err)
	for class, e := range engines {
		e.SweepLocks()
		all, err := list(ctx, e)
		k.say(class, "the datasets of class "+class+" can't be listed", err)
		if err == nil {
			k.empty(ctx, class, e, all)
		}
	}
}

func list(ctx context.Context, e *engine.Engine) ([]engine.Dataset, error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	return e.List(ctx)
}

// empty does what is due in one class. A pool that does not answer is left until the next look.
func (k *Keeper) empty(ctx context.Context, class string, e *engine.Engine, all []engine.Dataset) {
	there := map[string]bool{}
	for _, d := range all {
		there[class+"/"+d.Name] = engine.InTrash(d.Name)
	}
	gone := func(key string) bool { return strings.HasPrefix(key, class+"/") && !there[key] }
	maps.DeleteFunc(k.began, func(key string, _ time.Time) bool { return gone(key) })
	maps.DeleteFunc(k.said, func(key, _ string) bool { return gone(key) })
	for _, d := range all {
		if ctx.Err() != nil || !engine.InTrash(d.Name) {
			continue
		}
		key := class + "/" + d.Name
		err := k.expire(ctx, e, d, key)
		if errors.Is(err, engine.ErrNotFound) {
			err = nil // it was restored or emptied meanwhile
		}
		k.say(key, d.Name+" stays in the trash of class "+class, err)
		if errors.Is(err, engine.ErrUnavailable) {
			return
		}
	}
}

// say logs an error that was not logged before, and when it is over.
func (k *Keeper) say(key, what string, err error) {
	switch {
	case err == nil && k.said[key] != "":
		delete(k.said, key)
		k.Logger.Info(what + ": this is over")
	case err != nil && k.said[key] != err.Error() && !errors.Is(err, context.Canceled):
		k.said[key] = err.Error()
		k.Logger.Warn(what, "error", err)
	}
}

// expire destroys what the trash need not keep any more. Only the time counts in which a Keeper runs, by a clock that
// does not leap (CLOCK_MONOTONIC): a node whose time is set to next year keeps what it has.
func (k *Keeper) expire(ctx context.Context, e *engine.Engine, d engine.Dataset, key string) error {
	left, ends, err := d.Left()
	if err != nil {
		return fmt.Errorf("it is not clear how long: %w", err)
	}
	if !ends {
		return nil
	}
	now := k.now()
	if k.began[key].IsZero() {
		k.began[key] = now
	}
	passed := now.Sub(k.began[key])
	if passed < left && passed < save {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	unlock, err := lock(ctx, e, engine.TrashLock(d.Name))
	if err != nil {
		return err
	}
	defer unlock()
	if passed >= left {
		return e.Destroy(ctx, d.Name)
	}
	kept, err := time.ParseDuration(d.Tags[engine.Kept])
	if err != nil {
		return err
	}
	err = e.Tag(ctx, d.Name, engine.Tags{engine.Passed: (kept - left + passed).String()})
	if err != nil {
		return err
	}
	k.began[key] = now
	return nil
}

func lock(ctx context.Context, e *engine.Engine, key string) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	return e.Lock(ctx, key)
}
