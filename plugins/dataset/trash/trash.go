// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package trash destroys what the trash has kept long enough. It runs in the device plugin's process, the only one that
// lives as long as the agent.
package trash

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

const (
	period  = time.Minute     // between looks
	gather  = 2 * time.Second // between a wish for a look and the look
	limit   = time.Minute     // for what is done to one dataset
	patient = 5 * time.Second // for the lock of a dataset; the next look tries again
)

// Keeper empties the trash of one node.
type Keeper struct {
	// Engines returns the classes that can be used now, by name. It is called at each look.
	Engines func(context.Context) (map[string]*engine.Engine, error)
	Logger  hclog.Logger

	// Soon asks for a look before the next one is due, as for what has just been put into the
	// trash for no time. May be nil.
	Soon <-chan struct{}

	now  func() time.Time  // for tests
	said map[string]string // what has been logged and still holds, by dataset
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
	k.said = map[string]string{}
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
		all, err := e.List(ctx)
		k.say(class, "the datasets of class "+class+" can't be listed", err)
		for _, d := range all {
			if ctx.Err() != nil {
				return
			}
			if engine.InTrash(d.Name) {
				k.say(class+"/"+d.Name, d.Name+" stays in the trash of class "+class, k.expire(ctx, e, d))
			}
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

// expire destroys what the trash need not keep any more.
func (k *Keeper) expire(ctx context.Context, e *engine.Engine, d engine.Dataset) error {
	expires, err := time.Parse(time.RFC3339, d.Tags[engine.Expires])
	if d.Tags[engine.Expires] == "" || err == nil && k.now().Before(expires) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("it is not clear how long: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	unlock, err := lock(ctx, e, engine.TrashLock(d.Name))
	if err != nil {
		return err
	}
	defer unlock()
	return e.Destroy(ctx, d.Name)
}

func lock(ctx context.Context, e *engine.Engine, key string) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	return e.Lock(ctx, key)
}
