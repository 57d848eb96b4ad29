// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package engine makes, limits, snapshots and removes ZFS datasets with OpenZFS's zfs program. It adds a lock for each
// dataset, and the trash.
//
// Datasets below the root of a class:
//
//	<namespace>/<volume id>     volumes
//	.slots/<slot>.<lease>       scratch, one dataset for each reservation
//	.trash/<name>.<time>        deleted datasets
//
// Datasets of other tools are left alone until they are adopted. Nothing outside of the root is changed or read.
package engine

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Engine manages the datasets below one root. A name is a dataset's path below the root: one or two components, joined
// by a slash. To change a dataset, the caller holds its lock and passes the context that Lock returned. Different
// datasets can be changed at the same time, also by different processes. A call that was killed can be repeated.
//
// Only this package mounts a dataset: canmount=noauto excludes it from "zfs mount -a" at boot, so a dataset in the
// trash stays unmounted. The parents (<root>/<namespace> and so on) are never mounted and have no mount point to
// inherit.
//
// The tags of a dataset are stored in one user property, which is set when the dataset is created. Inherited tags are
// ignored, because datasets that other tools make below a dataset of this package inherit the property.
type Engine struct {
	// Locks is a directory that only root can change, shared by all processes that use this root.
	Locks string

	program program
	root    string // full ZFS name
}

// Open returns the engine of a root such as "tank/nomad". Path is the absolute path of the zfs program.
// Open verifies nothing: see Check.
func Open(path, root string) *Engine {
	return &Engine{Locks: LockDir, program: program{path, hungIn(poolOf(root))}, root: root}
}

// poolOf returns the pool of a dataset.
func poolOf(full string) string {
	pool, _, _ := strings.Cut(full, "/")
	return pool
}

// component matches one component of a name. It can't begin with a dot: only this package's own folders do.
var component = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:+-]{0,199}$`)

// full returns a dataset's full ZFS name.
func (e *Engine) full(name string) (string, error) {
	parts := strings.Split(name, "/")
	last := len(parts) - 1
	if len(parts) > 2 || !component.MatchString(parts[last]) ||
		last == 1 && !component.MatchString(parts[0]) && !slices.Contains(ownDirs, parts[0]) {
		return "", fmt.Errorf("%q can't be the name of a dataset", name)
	}
	full := e.root + "/" + name
	if len(full) > 200 { // ZFS limits the full name of a snapshot to 255
		return "", fmt.Errorf("%q can't be the name of a dataset: it is too long below the root %s", name, e.root)
	}
	return full, nil
}

// Find returns a dataset that must have these tags. If a tag differs, it returns ErrForeign.
func (e *Engine) Find(ctx context.Context, name string, tags Tags) (Dataset, error) {
	d, err := e.Get(ctx, name)
	if err != nil {
		return Dataset{}, err
	}
	for tag, want := range tags {
		if have := d.Tags[tag]; have != want {
			return Dataset{}, fmt.Errorf("dataset %s was %w for %s %q, but for %q", name, ErrForeign, tag, want, have)
		}
	}
	return d, nil
}

// Folders of this package below a root. No namespace can have such a name.
const (
	slotsDir = ".slots"
	trashDir = ".trash"
)

var ownDirs = []string{slotsDir, trashDir}

// VolumeName returns the name of a volume's dataset.
func VolumeName(namespace, id string) string { return namespace + "/" + id }

// SlotName returns the name of the dataset for one reservation of a slot.
func SlotName(slot, lease string) string { return slotsDir + "/" + slot + "." + lease }

// Discard moves a dataset to the trash. The caller holds the dataset's lock. While the dataset is in use, Discard
// leaves it in place and returns ErrInUse. A second call returns ErrNotFound. Package trash destroys the dataset
// after the duration in keep, which counts only while the plugin runs. If keep is 0, the dataset stays until an
// operator empties the trash.
func (e *Engine) Discard(ctx context.Context, name string, keep time.Duration) error {
	// users may know the key of an adopted volume from Nomad: removing the tag Adopt makes the key useless
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

// TrashLock returns the key to pass to Lock for a dataset in the trash. It is not the id of the former volume or slot,
// so calls for that id need not wait until the dataset is destroyed.
func TrashLock(name string) string {
	_, base, _ := strings.Cut(name, "/")
	return base
}

// InTrash reports whether a dataset of this name is in the trash.
func InTrash(name string) bool { return strings.HasPrefix(name, trashDir+"/") }
