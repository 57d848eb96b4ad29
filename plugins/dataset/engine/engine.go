// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package engine makes, limits, snapshots and removes datasets of ZFS, by the zfs program of OpenZFS.
// On top of what zfs does there are a lock for each dataset and the trash.
//
// Below the root of a class there are:
//
//	<namespace>/<volume id>     volumes
//	.slots/<slot>.<lease>       scratch, one dataset for each reservation
//	.trash/<name>.<time>        what was deleted and can be restored
//
// Datasets that another tool has made there are left alone until they are adopted.
// Nothing outside of the root is changed or read.
package engine

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Engine has the datasets below one root. A name is a dataset's place below the root, one or two components
// joined by a slash. Callers hold the dataset's lock (Engine.Lock) for everything that changes it; other
// datasets may be changed at the same time, also by other processes. A method that was killed at any point
// can be called again.
//
// A dataset is mounted by Mount alone: canmount=noauto keeps everything else from it, also "zfs mount -a" at
// boot, so one that is in the trash stays unmounted. The datasets above (<root>/<namespace> and so on) are
// never mounted and have no mount point to inherit.
//
// The tags are one user property, set with the creation. It counts only if it is the dataset's own: what is
// made below a dataset of ours inherits it.
type Engine struct {
	// Locks is a directory that only root can change, the same for all processes that use this root.
	Locks string

	program program
	root    string // dataset
}

// Open returns the datasets below a dataset such as "tank/nomad". The program is zfs, by its absolute path.
// It looks at nothing, which is for Check.
func Open(path, root string) *Engine {
	return &Engine{Locks: LockDir, program: program{path, hungIn(poolOf(root))}, root: root}
}

// poolOf is the pool of a dataset.
func poolOf(full string) string {
	pool, _, _ := strings.Cut(full, "/")
	return pool
}

// component is a part of a name. It can't begin with a dot: such folders are this package's.
var component = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:+-]{0,199}$`)

// full returns the name that zfs has for a dataset.
func (e *Engine) full(name string) (string, error) {
	parts := strings.Split(name, "/")
	last := len(parts) - 1
	if len(parts) > 2 || !component.MatchString(parts[last]) ||
		last == 1 && !component.MatchString(parts[0]) && !slices.Contains(ownDirs, parts[0]) {
		return "", fmt.Errorf("%q can't be the name of a dataset", name)
	}
	full := e.root + "/" + name
	if len(full) > 200 { // ZFS has 255 for it with a snapshot's name
		return "", fmt.Errorf("%q can't be the name of a dataset: with %s before it, it is too long", name, e.root)
	}
	return full, nil
}

// Find returns a dataset that has these tags. One that has others belongs to somebody else:
// ErrForeign.
func (e *Engine) Find(ctx context.Context, name string, tags Tags) (Dataset, error) {
	d, err := e.Get(ctx, name)
	if err != nil {
		return Dataset{}, err
	}
	for tag, want := range tags {
		if have := d.Tags[tag]; have != want {
			return Dataset{}, fmt.Errorf("dataset %s is that of %s %q, not %q: %w", name, tag, have, want, ErrForeign)
		}
	}
	return d, nil
}

// The folders below a root that no namespace can be called.
const (
	slotsDir = ".slots"
	trashDir = ".trash"
)

var ownDirs = []string{slotsDir, trashDir}

// VolumeName is the name of a volume's dataset.
func VolumeName(namespace, id string) string { return namespace + "/" + id }

// SlotName is the name of the dataset of one reservation of a slot.
func SlotName(slot, lease string) string { return slotsDir + "/" + slot + "." + lease }

// Discard puts a dataset into the trash. Keep is for how long package trash must have seen it there; 0 is until a
// person empties it. The caller holds its lock. Of two calls for one dataset the second finds nothing: ErrNotFound. If
// it is in use, it stays where it is: ErrInUse.
func (e *Engine) Discard(ctx context.Context, name string, keep time.Duration) error {
	// it does not wait for a volume: Nomad has shown the key of one that was adopted
	tags := Tags{Kept: "", Passed: "", Adopt: ""}
	if keep > 0 {
		tags[Kept] = keep.String()
	}
	if err := e.Tag(ctx, name, tags); err != nil {
		return err
	}
	_, base, _ := strings.Cut(name, "/")
	return e.Rename(ctx, name, fmt.Sprintf("%s/%s.%s", trashDir, base, time.Now().UTC().Format("20060102T150405.000Z")))
}

// TrashLock is the key of the lock for a dataset in the trash: its own, so that destroying it
// does not hold up the volume or slot that it was.
func TrashLock(name string) string {
	_, base, _ := strings.Cut(name, "/")
	return base
}

// InTrash reports whether a dataset of this name is in the trash.
func InTrash(name string) bool { return strings.HasPrefix(name, trashDir+"/") }
