// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package slot

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	nomad "github.com/hashicorp/nomad/plugins/device"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/owndir"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// mounts is the host directory with the mount points of slots.
const mounts = "/run/outrider/dataset/slots"

// Reserve implements device.Instance. The ids are those of slots of one class.
func (i *instance) Reserve(ctx context.Context, ids []string) (*nomad.ContainerReservation, error) {
	r := &nomad.ContainerReservation{Envs: map[string]string{}}
	for n, id := range ids {
		class := classOf(id)
		c, e := i.class(class)
		if e == nil || c.Slots == nil {
			return nil, fmt.Errorf("slot %q is no longer in the operator's file %s", id, i.File)
		}
		quota := c.Slots.Capacity.Bytes()
		path, err := i.makeSlot(ctx, e, id, engine.Spec{
			Limits: engine.Limits{Data: quota},
			Tags:   engine.Tags{engine.Kind: "slot", engine.ID: id},
		})
		if err != nil {
			return nil, fmt.Errorf("failed to make slot %q: %w", id, err)
		}
		variable, target := "DATASET_"+strings.ToUpper(strings.ReplaceAll(class, "-", "_")), c.Slots.Mount
		if n > 0 {
			variable, target = fmt.Sprintf("%s_%d", variable, n+1), fmt.Sprintf("%s-%d", target, n+1)
		}
		r.Envs[variable] = target
		r.Envs[variable+"_ID"] = id
		r.Envs[variable+"_QUOTA"] = strconv.FormatInt(quota, 10)
		r.Mounts = append(r.Mounts, &nomad.Mount{HostPath: path, TaskPath: target})
	}
	i.views.Kick() // by now, the API shows the allocation
	return r, nil
}

// makeSlot makes the dataset of a slot, with a new lease, and returns its path. The caller has released all leases of
// the slot that it could list. If makeSlot finds another, for example because the pool was slow, it returns an error.
func (i *instance) makeSlot(ctx context.Context, e datasets, id string, s engine.Spec) (string, error) {
	ctx, unlock, err := e.Lock(ctx, id, time.Minute)
	if err != nil {
		return "", err
	}
	defer unlock()
	there, err := e.Look(ctx)
	if err != nil {
		return "", fmt.Errorf("failed to check whether a task has it: %w", err)
	}
	for _, d := range there.Datasets {
		if l := (lease{d, e}); l.is() && l.slot() == id {
			return "", fmt.Errorf("it is held by %s", l.holder())
		}
	}
	s.Tags[engine.Lease] = strings.ToLower(rand.Text()[:12])
	name := engine.SlotName(id, s.Tags[engine.Lease])
	i.begin(name, e)
	if s.Dir, err = mountPoint(name); err != nil {
		return "", err
	}
	path, err := e.Create(ctx, name, s)
	if err != nil {
		return "", err
	}
	return path, unix.Chmod(path, 0o1777)
}

// mountPoint returns the mount point of a slot's dataset, and makes the directory above it.
func mountPoint(name string) (string, error) {
	dir, err := owndir.Make(mounts, 0o711)
	if err != nil {
		return "", err
	}
	return filepath.Join(mounts, filepath.Base(name)), dir.Close()
}

// remount mounts the datasets of leases that are not mounted: after a boot of the host, Nomad restarts tasks with the
// same reservations, but nothing is mounted.
func (i *instance) remount(ctx context.Context, now look) {
	hangs := map[datasets]bool{}
	for _, l := range now.leases {
		if l.Path == "" && !hangs[l.engine] {
			err := i.mount(ctx, l)
			hangs[l.engine] = errors.Is(err, engine.ErrUnavailable)
			i.say("mount of "+l.Name, "failed to mount slot "+l.slot()+" again", err)
		}
	}
}

func (i *instance) mount(ctx context.Context, l lease) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	ctx, unlock, err := l.engine.Lock(ctx, l.slot(), lookTime)
	if err != nil {
		return err
	}
	defer unlock()
	dir, err := mountPoint(l.Name)
	if err != nil {
		return err
	}
	if _, err = l.engine.Mount(ctx, l.Name, dir); errors.Is(err, engine.ErrNotFound) {
		return nil // the slot was released before it was locked
	}
	return err
}

// Leases implements device.Releaser. If ids are given, it reads only the roots with these slots, so it need not wait
// for the pools of other classes, which may hang.
func (i *instance) Leases(ctx context.Context, ids ...string) ([]device.Lease, error) {
	i.load()
	now := i.look(ctx, i.rootsOf(ids)...)
	var all []device.Lease
	for _, l := range now.leases {
		all = append(all, device.Lease{ID: l.slot(), Holder: l.holder(), Key: l.Name, Ended: i.state(l.Name).over})
	}
	for _, id := range ids {
		_, e := i.class(classOf(id))
		if err := now.failed[e]; err != nil { // a slot needs only its current root: previous ones may fail
			return nil, err
		}
	}
	return all, nil
}

// keep is how long the trash keeps a slot's dataset. 0 would mean no limit; with 1 ns the next look destroys it.
const keep = time.Nanosecond

// Release implements device.Releaser. It renames the dataset, which takes milliseconds; package trash
// destroys it later.
func (i *instance) Release(ctx context.Context, l device.Lease) error {
	e := i.state(l.Key).engine
	if e == nil {
		return nil // the last look did not find the lease
	}
	ctx, unlock, err := e.Lock(ctx, l.ID, time.Minute)
	if err != nil {
		return err
	}
	defer unlock()
	err = e.Discard(ctx, l.Key, keep)
	switch {
	case errors.Is(err, engine.ErrInUse):
		return fmt.Errorf("%w: %w", device.ErrInUse, err)
	case err != nil && !errors.Is(err, engine.ErrNotFound):
		return err
	}
	i.trash.Kick()
	return nil
}
