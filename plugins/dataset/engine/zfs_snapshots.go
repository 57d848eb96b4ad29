// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// snapshot returns zfs's name of a snapshot that is there.
func (e *Engine) snapshot(ctx context.Context, name, snapshot string) (string, error) {
	p, err := e.get(ctx, name)
	if err != nil {
		return "", err
	}
	return e.snapshotOf(ctx, p, snapshot)
}

// snapshotOf is snapshot for a dataset that was found.
func (e *Engine) snapshotOf(ctx context.Context, p properties, snapshot string) (string, error) {
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

// Snapshots returns a dataset's snapshots, oldest first.
func (e *Engine) Snapshots(ctx context.Context, name string) ([]Snapshot, error) {
	p, err := e.get(ctx, name)
	if err != nil {
		return nil, err
	}
	return e.snapshotsOf(ctx, p)
}

// snapshotsOf is Snapshots for a dataset that was found.
func (e *Engine) snapshotsOf(ctx context.Context, p properties) ([]Snapshot, error) {
	found, err := e.properties(ctx, 1, p.full)
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

// DestroySnapshot removes one. ErrNotFound, ErrHasClones, ErrInUse if it is held.
func (e *Engine) DestroySnapshot(ctx context.Context, name, snapshot string) error {
	full, err := e.snapshot(ctx, name, snapshot)
	if err != nil {
		return err
	}
	if err := e.do(ctx, "destroy", full); err != nil {
		return cmp.Or(e.dependents(ctx, full), e.held(ctx, full, err))
	}
	return nil
}

// Rollback brings a dataset back to a snapshot. Later snapshots and bookmarks are lost: ErrLaterSnapshots, unless
// discard is set. ErrInUse if it is mounted: zfs does it to files that are open, too.
func (e *Engine) Rollback(ctx context.Context, name, snapshot string, discard bool) error {
	p, err := e.get(ctx, name)
	if err != nil {
		return err
	}
	full, err := e.snapshotOf(ctx, p, snapshot)
	if err != nil {
		return err
	}
	list, err := e.snapshotsOf(ctx, p)
	if err != nil {
		return err
	}
	if n := len(list); !discard && n > 0 && list[n-1].Name != snapshot { // zfs says so again, of those since this look
		return fmt.Errorf("snapshot %s is not the last one, which is %s: %w", full, list[n-1].Name, ErrLaterSnapshots)
	}
	remount, err := e.unmount(ctx, p)
	if err != nil {
		return err
	}
	err = mountedElsewhere(p)
	if err == nil {
		command := []string{"rollback"}
		if discard {
			command = append(command, "-r")
		}
		err = e.do(ctx, append(command, full)...)
	}
	if err != nil && !errors.Is(err, ErrInUse) && !errors.Is(err, ErrLaterSnapshots) {
		err = cmp.Or(e.dependents(ctx, p.full), err)
	}
	mountErr := remount()
	if err == nil && mountErr != nil {
		return fmt.Errorf("dataset %s was rolled back, and can't be mounted again: %w", p.full, mountErr)
	}
	return also(e.held(ctx, p.full, err), mountErr)
}
