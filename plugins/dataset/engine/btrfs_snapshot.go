// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// snapshotPath is where a snapshot is. Since that has the dataset's key and not its name, it stays
// there when the dataset is renamed.
func (b *btrfs) snapshotPath(r *record, snapshot string) string {
	return filepath.Join(b.root, snapshotsDir, strconv.FormatUint(r.Key, 10), snapshot)
}

// snapshotNames returns those of a dataset, none if it has no key.
func (b *btrfs) snapshotNames(r *record) (names []string, err error) {
	if r.Key == 0 {
		return nil, nil
	}
	entries, err := os.ReadDir(b.snapshotPath(r, ""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// placeOfSnapshot returns a dataset, and the path that a snapshot of it has or would have.
func (b *btrfs) placeOfSnapshot(name, snapshot string) (*record, string, error) {
	if !component.MatchString(snapshot) {
		return nil, "", fmt.Errorf("%q can't be the name of a snapshot", snapshot)
	}
	r, err := b.find(name)
	if err != nil {
		return nil, "", err
	}
	return r, b.snapshotPath(r, snapshot), nil
}

// findSnapshot returns the path of a snapshot that exists. ErrNotFound.
func (b *btrfs) findSnapshot(name, snapshot string) (*record, string, error) {
	r, path, err := b.placeOfSnapshot(name, snapshot)
	if err == nil && !exists(path) {
		err = fmt.Errorf("snapshot %s of dataset %s: %w", snapshot, name, ErrNotFound)
	}
	return r, path, err
}

// Snapshots is part of Backend.
func (b *btrfs) Snapshots(_ context.Context, name string) ([]Snapshot, error) {
	r, err := b.find(name)
	if err != nil {
		return nil, err
	}
	q, err := b.quota()
	if err != nil {
		return nil, err
	}
	names, err := b.snapshotNames(r)
	if err != nil {
		return nil, b.failed("list the snapshots of", name, err)
	}
	var all []Snapshot
	for _, snapshot := range names {
		s, err := subvolume(b.snapshotPath(r, snapshot))
		if errors.Is(err, fs.ErrNotExist) {
			continue // destroyed meanwhile
		}
		if err != nil {
			return nil, b.failed("list the snapshots of", name, err)
		}
		all = append(all, Snapshot{Name: snapshot, Created: s.created, Used: q.exclusive(subvolumeGroup(s.id))})
	}
	slices.SortFunc(all, func(a, b Snapshot) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// Snapshot is part of Backend.
func (b *btrfs) Snapshot(ctx context.Context, name, snapshot string) error {
	r, path, err := b.placeOfSnapshot(name, snapshot)
	if err != nil {
		return err
	}
	if exists(path) {
		return fmt.Errorf("snapshot %s of dataset %s: %w", snapshot, name, ErrExists)
	}
	if err = b.join(ctx, name, r); err == nil {
		err = b.addSnapshot(ctx, r, b.path(name), path)
	}
	return b.failed("snapshot", name, err)
}

// addSnapshot makes a snapshot of a subvolume at its place, in one step of the kernel.
func (b *btrfs) addSnapshot(ctx context.Context, r *record, of, path string) error {
	if err := b.makeDir(filepath.Join(snapshotsDir, strconv.FormatUint(r.Key, 10))); err != nil {
		return err
	}
	return b.copy(ctx, r, of, path, "-r")
}

// copy makes a snapshot, writable or not, of one of the same dataset, or of another if r is nil.
func (b *btrfs) copy(ctx context.Context, r *record, from, to string, options ...string) error {
	args := append([]string{"subvolume", "snapshot"}, options...)
	if r != nil && r.Grouped {
		args = append(args, "-i", r.group())
	}
	if _, err := b.program.run(ctx, append(args, from, to)...); err != nil {
		return err
	}
	return b.rescan(ctx)
}

// DestroySnapshot is part of Backend.
func (b *btrfs) DestroySnapshot(ctx context.Context, name, snapshot string) error {
	_, path, err := b.findSnapshot(name, snapshot)
	if err != nil {
		return err
	}
	if err = b.unused(ctx, path); err == nil {
		err = b.condemn(ctx, path, false)
	}
	return b.failed("destroy snapshot "+snapshot+" of", name, err)
}

// Rollback is part of Backend. No snapshot is lost by it.
func (b *btrfs) Rollback(ctx context.Context, name, snapshot string, _ bool) error {
	r, path, err := b.findSnapshot(name, snapshot)
	if err != nil {
		return err
	}
	if err := b.unused(ctx, b.path(name)); err != nil {
		return b.failed("roll back", name, err)
	}
	stage, err := b.openStage(ctx, name)
	if err != nil {
		return err
	}
	defer stage.close()
	return b.failed("roll back", name, stage.replace(ctx, path, r))
}

// replace makes a dataset a copy of a snapshot. What it was goes onto the stage in the same
// moment, and nobody uses it there.
func (s *stage) replace(ctx context.Context, snapshot string, r *record) error {
	if err := s.b.copy(ctx, r, snapshot, s.data()); err != nil {
		return err
	}
	if err := s.b.limit(ctx, r.Limits.Data, s.data()); err != nil {
		return err
	}
	now, err := subvolume(s.data())
	if err != nil {
		return err
	}
	r.Replaced = true
	if err := s.b.save(s.name, r); err != nil {
		return err
	}
	if err := os.Mkdir(s.path(replacesFile), 0o700); err != nil {
		return err
	}
	if err := s.exchange(); err != nil {
		return err
	}
	if err := s.b.unused(ctx, s.data()); err != nil {
		return also(err, s.exchange())
	}
	r.Subvolume, r.Replaced = now.id, false
	return s.b.save(s.name, r)
}

func (s *stage) exchange() error {
	err := unix.Renameat2(unix.AT_FDCWD, s.data(), unix.AT_FDCWD, s.b.path(s.name), unix.RENAME_EXCHANGE)
	if err != nil {
		return &os.LinkError{Op: "exchange", Old: s.data(), New: s.b.path(s.name), Err: err}
	}
	return nil
}

// Clone is part of Backend.
func (b *btrfs) Clone(ctx context.Context, name, snapshot, to string, s Spec) (string, error) {
	_, path, err := b.findSnapshot(name, snapshot)
	if err != nil {
		return "", err
	}
	of, err := subvolume(path)
	if err != nil {
		return "", b.failed("clone", name, err)
	}
	q, err := b.quota()
	if err != nil {
		return "", err
	}
	if has := q.referenced(subvolumeGroup(of.id)); s.Data > 0 && has > s.Data {
		return "", fmt.Errorf("snapshot %s of dataset %s has %d bytes, and the clone's limit is %d: %w", snapshot, name,
			has, s.Data, ErrTooSmall)
	}
	stage, err := b.stage(ctx, to)
	if err != nil {
		return "", err
	}
	defer stage.close()
	if err = b.copy(ctx, nil, path, stage.data()); err == nil {
		err = b.finish(ctx, stage, s)
	}
	if err != nil {
		return "", b.failed("create", to, err)
	}
	return b.path(to), nil
}

// Resize is part of Backend.
func (b *btrfs) Resize(ctx context.Context, name string, l Limits) error {
	r, err := b.find(name)
	if err != nil {
		return err
	}
	// the kernel counts at the end of each transaction
	if _, err := b.program.run(ctx, "filesystem", "sync", b.root); err != nil {
		return b.failed("resize", name, err)
	}
	q, err := b.quota()
	if err != nil {
		return err
	}
	d := b.dataset(name, r, q)
	if l.Data > 0 && d.Usage.Data > l.Data {
		return fmt.Errorf("dataset %s has %d bytes, and the limit would be %d: %w", name, d.Usage.Data, l.Data, ErrTooSmall)
	}
	if l.Data > 0 && l.Snapshots > 0 && d.Usage.Data+d.Usage.Snapshots > l.Data+l.Snapshots {
		return fmt.Errorf("the snapshots of dataset %s have %d bytes, and the limit would be %d: %w", name,
			d.Usage.Snapshots, l.Snapshots, ErrTooSmall)
	}
	r.Limits = l
	err = b.limit(ctx, l.Data, b.path(name))
	if err == nil && r.Grouped {
		err = b.limitGroup(ctx, r)
	}
	if err == nil {
		err = b.save(name, r)
	}
	return b.failed("resize", name, err)
}
