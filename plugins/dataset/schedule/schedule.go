// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package schedule does by the clock what nobody asks for: snapshots of volumes, of which the
// newest are kept, and an end to what the trash has kept long enough. It runs in the device
// plugin's process, the only one that lives as long as the agent.
package schedule

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

const (
	period  = time.Minute     // between looks
	gather  = 2 * time.Second // between a wish for a look and the look
	limit   = time.Minute     // for what is done to one dataset
	patient = 5 * time.Second // for the lock of a dataset; the next look tries again

	// leastFree is the part of a file system in percent that snapshots leave alone: on a full
	// one each of them keeps what tasks delete.
	leastFree = 2

	// fullest is the part of their reserve in percent that snapshots may take. Above all of it
	// a task could write no more.
	fullest = 90
)

// Keeper is the schedule of one node.
type Keeper struct {
	// Engines returns the classes that can be used now, by name. It is called at each look.
	Engines func(context.Context) (map[string]*engine.Engine, error)
	Logger  hclog.Logger

	// Soon asks for a look before the next one is due, as for what has just been put into the
	// trash for no time. May be nil.
	Soon <-chan struct{}

	now    func() time.Time     // for tests
	looked map[string]time.Time // when a volume need not be looked at before, by root, name and schedule
	said   map[string]string    // what has been logged and still holds, by dataset
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
	k.looked, k.said = map[string]time.Time{}, map[string]string{}
	if k.now == nil {
		k.now = time.Now
	}
}

// Look does what is due now.
func (k *Keeper) Look(ctx context.Context) {
	engines, err := k.Engines(ctx)
	k.say("", "the schedule of snapshots can't be kept", err)
	now := k.now() // what is over says nothing any more, as of a volume that is gone
	maps.DeleteFunc(k.looked, func(_ string, until time.Time) bool { return !now.Before(until) })
	for class, e := range engines {
		e.SweepLocks()
		all, err := e.List(ctx)
		k.say(class, "the datasets of class "+class+" can't be listed", err)
		for _, d := range all {
			if ctx.Err() != nil {
				return
			}
			key := class + "/" + d.Name
			switch {
			case engine.InTrash(d.Name):
				k.say(key, d.Name+" stays in the trash of class "+class, k.expire(ctx, e, d))
			case engine.InNew(d.Name):
				k.say(key, d.Name+" of class "+class+" is left over", sweep(ctx, e, d))
			case d.Tags[engine.Kind] == "volume" && !engine.Received(d.Name):
				k.say(key, fmt.Sprintf("volume %s (%s)", d.Tags[engine.Volume], d.Tags[engine.ID]), k.volume(ctx, class, e, d))
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

// volume makes the snapshots of a volume that are due, and removes those that are too many.
func (k *Keeper) volume(ctx context.Context, class string, e *engine.Engine, d engine.Dataset) error {
	rules, err := policy.ParseSchedule(d.Tags[engine.Schedule])
	if err != nil || len(rules) == 0 {
		return err
	}
	now := k.now().UTC()
	key := class + "/" + d.Name + "?" + d.Tags[engine.Schedule]
	full := d.Limits.Snapshots > 0 && d.Usage.Snapshots > d.Limits.Snapshots/100*fullest
	if now.Before(k.looked[key]) && !full {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	unlock, err := lock(ctx, e, d.Tags[engine.ID])
	if err != nil {
		return err
	}
	defer unlock()
	snapshots, err := e.Snapshots(ctx, d.Name)
	if err != nil {
		return err
	}
	if full {
		if snapshots, err = k.relieve(ctx, e, d, snapshots); err != nil {
			return err
		}
	}
	due := Due(rules, d.Created, snapshots, now)
	if len(due) > 0 {
		if err := room(ctx, e); err != nil {
			return err
		}
	}
	for _, name := range due {
		if err := e.Snapshot(ctx, d.Name, name); err != nil && !errors.Is(err, engine.ErrExists) {
			return fmt.Errorf("snapshot %s was not made: %w", name, err)
		}
		snapshots = append(snapshots, engine.Snapshot{Name: name, Created: now})
	}
	var all error
	for _, name := range Surplus(rules, snapshots) {
		if err := e.DestroySnapshot(ctx, d.Name, name); err != nil && !errors.Is(err, engine.ErrNotFound) {
			all = errors.Join(all, fmt.Errorf("snapshot %s is older than the schedule keeps, and stays: %w", name, err))
		}
	}
	k.looked[key] = next(rules, now)
	return all
}

// relieve removes the oldest snapshot of a schedule, one at each look, when snapshots have
// nearly used up what they may: with all of it used, the task could not write.
func (k *Keeper) relieve(ctx context.Context, e *engine.Engine, d engine.Dataset,
	all []engine.Snapshot) ([]engine.Snapshot, error) {
	for i, s := range all {
		if _, ok := made(s.Name); !ok {
			continue
		}
		if err := e.DestroySnapshot(ctx, d.Name, s.Name); errors.Is(err, engine.ErrHasClones) {
			continue
		} else if err != nil {
			return all, err
		}
		k.Logger.Warn("a snapshot was removed before its time: snapshots have used their reserve", "volume",
			d.Tags[engine.Volume],
			"id", d.Tags[engine.ID], "snapshot", s.Name, "used", d.Usage.Snapshots, "reserve", d.Limits.Snapshots)
		return slices.Delete(slices.Clone(all), i, i+1), nil
	}
	return all, errors.New("its snapshots have nearly used their reserve, and none of them is of the schedule: remove " +
		"some")
}

func room(ctx context.Context, e *engine.Engine) error {
	s, err := e.Space(ctx)
	if err == nil && s.Free < s.Size/100*leastFree {
		err = fmt.Errorf("no snapshot is made while less than %d%% of the file system is free: %w", leastFree,
			engine.ErrNoSpace)
	}
	return err
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

// sweep removes what a process that was killed has left. A process that lives has the lock.
func sweep(ctx context.Context, e *engine.Engine, d engine.Dataset) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	unlock, err := e.LockNew(ctx, d.Name)
	if err != nil {
		return nil //nolint:nilerr // it is in the works
	}
	defer unlock()
	return e.Destroy(ctx, d.Name)
}

func lock(ctx context.Context, e *engine.Engine, key string) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	return e.Lock(ctx, key)
}
