// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"
)

// snapshot returns zfs's name of a snapshot that is there.
func (z *zfs) snapshot(ctx context.Context, name, snapshot string) (string, error) {
	p, err := z.get(ctx, name)
	if err != nil {
		return "", err
	}
	return z.snapshotOf(ctx, p, snapshot)
}

// snapshotOf is snapshot for a dataset that was found.
func (z *zfs) snapshotOf(ctx context.Context, p properties, snapshot string) (string, error) {
	full, err := snapshotName(p.full, snapshot)
	if err != nil {
		return "", err
	}
	if !z.there(ctx, full) {
		return "", fmt.Errorf("snapshot %s: %w", full, ErrNotFound)
	}
	return full, nil
}

// snapshotName keeps to characters that mean nothing to "zfs destroy", which has lists and ranges.
func snapshotName(full, snapshot string) (string, error) {
	if !component.MatchString(snapshot) || strings.Contains(snapshot, "@") || len(snapshot) > 50 {
		return "", fmt.Errorf("%q can't be the name of a snapshot: use up to 50 letters, digits, dashes, dots, colons "+
			"and underscores", snapshot)
	}
	return full + "@" + snapshot, nil
}

// Snapshots is part of Backend.
func (z *zfs) Snapshots(ctx context.Context, name string) ([]Snapshot, error) {
	p, err := z.get(ctx, name)
	if err != nil {
		return nil, err
	}
	return z.snapshotsOf(ctx, p)
}

// snapshotsOf is Snapshots for a dataset that was found.
func (z *zfs) snapshotsOf(ctx context.Context, p properties) ([]Snapshot, error) {
	found, err := z.properties(ctx, 1, p.full)
	if err != nil {
		return nil, unavailable(err)
	}
	var list []Snapshot
	for _, s := range found { // in order of their creation
		if snapshot, is := strings.CutPrefix(s.full, p.full+"@"); is {
			created := time.Unix(s.bytes("creation"), 0).UTC()
			list = append(list, Snapshot{Name: snapshot, Created: created, Used: s.bytes("used")})
		}
	}
	return list, nil
}

// Snapshot is part of Backend.
func (z *zfs) Snapshot(ctx context.Context, name, snapshot string) error {
	p, err := z.get(ctx, name)
	if err != nil {
		return err
	}
	full, err := snapshotName(p.full, snapshot)
	if err != nil {
		return err
	}
	if _, err := z.run(ctx, "snapshot", full); err != nil {
		if z.there(ctx, full) {
			return fmt.Errorf("snapshot %s: %w", full, ErrExists)
		}
		return ours(err)
	}
	return nil
}

// DestroySnapshot is part of Backend.
func (z *zfs) DestroySnapshot(ctx context.Context, name, snapshot string) error {
	full, err := z.snapshot(ctx, name, snapshot)
	if err != nil {
		return err
	}
	if _, err := z.run(ctx, "destroy", full); err != nil {
		return cmp.Or(z.dependents(ctx, full), ours(err))
	}
	return nil
}

// Rollback is part of Backend. zfs does it to files that are open, too, so it is unmounted first.
func (z *zfs) Rollback(ctx context.Context, name, snapshot string, discard bool) error {
	p, err := z.get(ctx, name)
	if err != nil {
		return err
	}
	full, err := z.snapshotOf(ctx, p, snapshot)
	if err != nil {
		return err
	}
	list, err := z.snapshotsOf(ctx, p)
	if err != nil {
		return err
	}
	if last := list[len(list)-1].Name; last != snapshot && !discard {
		return fmt.Errorf("snapshot %s is not the last one, which is %s: %w", full, last, ErrLaterSnapshots)
	}
	remount, err := z.unmount(ctx, p)
	if err != nil {
		return err
	}
	if err = z.whileBusy(ctx, "rollback", "-r", full); err != nil {
		err = cmp.Or(z.dependents(ctx, p.full), err)
	}
	return also(err, remount())
}
