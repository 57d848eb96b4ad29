// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"fmt"
)

// snapshot returns zfs's name of a snapshot that is there.
func (e *Engine) snapshot(ctx context.Context, p properties, snapshot string) (string, error) {
	full, err := snapshotName(p.full, snapshot)
	if err != nil {
		return "", err
	}
	if !e.there(ctx, full) {
		return "", fmt.Errorf("snapshot %s: %w", full, ErrNotFound)
	}
	return full, nil
}

// snapshotName keeps to characters that mean nothing to "zfs destroy", which has lists and ranges.
func snapshotName(full, snapshot string) (string, error) {
	if !component.MatchString(snapshot) {
		return "", fmt.Errorf("%q can't be the name of a snapshot: use letters, digits, dashes, dots, colons and "+
			"underscores", snapshot)
	}
	return full + "@" + snapshot, nil
}

// Snapshot makes one. ErrExists if there is one of that name.
func (e *Engine) Snapshot(ctx context.Context, name, snapshot string) error {
	p, err := e.get(ctx, name)
	if err != nil {
		return err
	}
	full, err := snapshotName(p.full, snapshot)
	if err != nil {
		return err
	}
	if err := e.do(ctx, "snapshot", full); err != nil {
		if e.there(ctx, full) {
			return fmt.Errorf("snapshot %s: %w", full, ErrExists)
		}
		return err
	}
	return nil
}

// Rollback brings a dataset back to its last snapshot. With later snapshots or bookmarks nothing changes:
// ErrLaterSnapshots. ErrInUse if it is mounted: zfs does it to files that are open, too.
func (e *Engine) Rollback(ctx context.Context, name, snapshot string) error {
	p, err := e.get(ctx, name)
	if err != nil {
		return err
	}
	full, err := e.snapshot(ctx, p, snapshot)
	if err != nil {
		return err
	}
	remount, err := e.unmount(ctx, p)
	if err != nil {
		return err
	}
	err = mountedElsewhere(p)
	if err == nil {
		err = e.do(ctx, "rollback", full)
	}
	mountErr := remount()
	if err == nil && mountErr != nil {
		return fmt.Errorf("dataset %s was rolled back, and can't be mounted again: %w", p.full, mountErr)
	}
	return also(err, mountErr)
}
