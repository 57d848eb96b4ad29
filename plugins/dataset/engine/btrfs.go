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
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"

	"github.com/outrider-dev/outrider/plugins/dataset/inuse"
)

// btrfs has each dataset as a subvolume at its name below the root, with a record beside it
// (record.go), its limit in the subvolume's qgroup, and its snapshots below .snapshots.
//
// A subvolume is at a name only when it is complete. What is made or removed is below .new
// meanwhile, where any later call can tell what was left by a process that was killed.
type btrfs struct {
	program program
	root    string
}

// NewBtrfs returns the datasets in a directory of a btrfs. The program is btrfs, by its
// absolute path.
func NewBtrfs(path, root string) Backend {
	if real, err := filepath.EvalSymlinks(root); err == nil {
		root = real
	}
	return &btrfs{program(path), filepath.Clean(root)}
}

// ready returns why the root can't be used.
func (b *btrfs) ready() error {
	dir, err := owndir.Open(b.root)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the directory %s does not exist: mount its btrfs, or make it: %w", b.root, ErrUnavailable)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", err, ErrUnavailable)
	}
	defer dir.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("failed to look at %s: %w: %w", b.root, err, ErrUnavailable)
	}
	if st.Type != unix.BTRFS_SUPER_MAGIC {
		return fmt.Errorf("%s is not on a btrfs: mount it, or name another root: %w", b.root, ErrUnavailable)
	}
	if dir.Name() != b.root {
		return fmt.Errorf("%s has symbolic links in it: write %s as root: %w", b.root, dir.Name(), ErrUnavailable)
	}
	return nil
}

// Check is part of Backend.
func (b *btrfs) Check(ctx context.Context) error {
	if err := b.ready(); err != nil {
		return err
	}
	if _, err := b.program.run(ctx, "--version"); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(b.root, &st); err != nil || st.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("the file system of %s is read-only: mount it with rw, or see in dmesg why the kernel "+
			"has made it so: %w", b.root, ErrUnavailable)
	}
	if _, err := b.quota(); err != nil {
		return err
	}
	if err := b.sweep(ctx); err != nil {
		return err
	}
	names, err := b.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := b.load(name); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrForeign) {
			return err
		}
	}
	return b.rescan(ctx)
}

// Space is part of Backend.
func (b *btrfs) Space(context.Context) (Space, error) {
	if err := b.ready(); err != nil {
		return Space{}, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(b.root, &st); err != nil {
		return Space{}, fmt.Errorf("failed to look at %s: %w", b.root, err)
	}
	return Space{Size: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize}, nil //nolint:gosec // bytes
}

// List is part of Backend.
func (b *btrfs) List(context.Context) ([]Dataset, error) {
	if err := b.ready(); err != nil {
		return nil, err
	}
	names, err := b.names()
	if err != nil {
		return nil, err
	}
	q, err := b.quota()
	if err != nil {
		return nil, err
	}
	var all []Dataset
	for _, name := range names {
		if r, err := b.load(name); err == nil { // Check tells of damaged records
			all = append(all, b.dataset(name, r, q))
		}
	}
	return all, nil
}

// names returns the names that have a record, sorted.
func (b *btrfs) names() (names []string, err error) {
	add := func(dir string) ([]fs.DirEntry, error) {
		entries, err := os.ReadDir(filepath.Join(b.root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("failed to list datasets: %w", err)
		}
		for _, e := range entries {
			name, ok := strings.CutSuffix(filepath.Join(dir, e.Name()), recordSuffix)
			if ok && e.Type()&fs.ModeSymlink != 0 && checkName(name) == nil {
				names = append(names, b.settle(name))
			}
		}
		return entries, nil
	}
	top, err := add("")
	if err != nil {
		return nil, err
	}
	for _, e := range top {
		if e.IsDir() && e.Name() != snapshotsDir {
			if info, err := os.Lstat(filepath.Join(b.root, e.Name())); err != nil || isSubvolume(info) {
				continue
			}
			if _, err := add(e.Name()); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (b *btrfs) dataset(name string, r *record, q quota) Dataset {
	own := q.referenced(subvolumeGroup(r.Subvolume))
	d := Dataset{Name: name, Path: b.path(name), Created: r.Created, Tags: r.Tags, Limits: r.Limits,
		Usage: Usage{Data: own}}
	d.Usage.Snapshots = max(0, q.referenced(r.group())-own)
	return d
}

// Get is part of Backend.
func (b *btrfs) Get(_ context.Context, name string) (Dataset, error) {
	r, err := b.find(name)
	if err != nil {
		return Dataset{}, err
	}
	q, err := b.quota()
	if err != nil {
		return Dataset{}, err
	}
	return b.dataset(name, r, q), nil
}

// find returns the record of a dataset that exists.
func (b *btrfs) find(name string) (*record, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := b.ready(); err != nil {
		return nil, err
	}
	b.settle(name)
	r, err := b.load(name)
	if errors.Is(err, ErrForeign) { // its record may be where it was moved from, which names brings to it
		if _, err := b.names(); err != nil {
			return nil, err
		}
		return b.load(name)
	}
	return r, err
}

// Create is part of Backend.
func (b *btrfs) Create(ctx context.Context, name string, s Spec) (string, error) {
	stage, err := b.stage(ctx, name)
	if err != nil {
		return "", err
	}
	defer stage.close()
	_, err = b.program.run(ctx, "subvolume", "create", stage.data())
	if err == nil {
		err = b.finish(ctx, stage, s)
	}
	if err != nil {
		return "", b.failed("create", name, err)
	}
	return b.path(name), nil
}

// finish limits and describes the subvolume on a stage, and moves it to its name.
func (b *btrfs) finish(ctx context.Context, stage *stage, s Spec) error {
	made, err := subvolume(stage.data())
	if err != nil {
		return err
	}
	if err := b.limit(ctx, s.Data, stage.data()); err != nil {
		return err
	}
	if err := b.setProperties(ctx, stage.data(), s.Properties); err != nil {
		return err
	}
	return stage.place(&record{Subvolume: made.id, Key: made.id, Created: made.created, Limits: s.Limits, Tags: s.Tags})
}

// setProperties knows compression alone; btrfs has no record size.
func (b *btrfs) setProperties(ctx context.Context, path string, properties map[string]string) error {
	for name, value := range properties {
		if name != "compression" {
			return fmt.Errorf("btrfs has no property %q: leave it out, or write compression", name)
		}
		if _, err := b.program.run(ctx, "property", "set", path, name, value); err != nil {
			return fmt.Errorf("compression = %q can't be set: %w", value, err)
		}
	}
	return nil
}

// Mount is part of Backend. A subvolume is where it is, without a mount of its own.
func (b *btrfs) Mount(_ context.Context, name, _ string) (string, error) {
	if _, err := b.find(name); err != nil {
		return "", err
	}
	return b.path(name), nil
}

// Tag is part of Backend.
func (b *btrfs) Tag(_ context.Context, name string, t Tags) error {
	r, err := b.find(name)
	if err != nil {
		return err
	}
	r.Tags = r.Tags.with(t)
	return b.failed("tag", name, b.save(name, r))
}

// Rename is part of Backend.
func (b *btrfs) Rename(ctx context.Context, from, to string) error {
	if err := checkName(to); err != nil {
		return err
	}
	r, err := b.find(from)
	if err != nil {
		return err
	}
	if err := b.vacant(to); err != nil {
		return err
	}
	if err = b.unused(ctx, b.path(from)); err == nil {
		err = b.move(from, to, r)
	}
	return b.failed("rename", from, err)
}

// Users is part of Backend.
func (b *btrfs) Users(ctx context.Context, name string) ([]string, error) {
	if _, err := b.find(name); err != nil {
		return nil, err
	}
	return inuse.Users(ctx, b.path(name))
}

// unused returns an error if a process uses one of these subvolumes. btrfs itself would
// delete them all the same.
func (b *btrfs) unused(ctx context.Context, paths ...string) error {
	users, err := inuse.Users(ctx, paths...)
	if err != nil {
		return fmt.Errorf("it is unknown whether it is in use: %w", err)
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: %s", ErrInUse, strings.Join(users, ", "))
	}
	return nil
}

// unusedWithin is unused for a subvolume and those in it.
func (b *btrfs) unusedWithin(ctx context.Context, path string) error {
	paths, err := within(path)
	if err != nil {
		return err
	}
	return b.unused(ctx, paths...)
}

// Destroy is part of Backend. No clone depends on a dataset of btrfs.
func (b *btrfs) Destroy(ctx context.Context, name string) error {
	r, err := b.find(name)
	if errors.Is(err, ErrNotFound) {
		return b.failed("destroy", name, b.forget(name))
	}
	if err != nil {
		return err
	}
	paths, err := b.all(name, r)
	if err == nil {
		err = b.unused(ctx, paths...)
	}
	gone := goneName(r.Subvolume)
	if err == nil {
		err = b.move(name, gone, r)
	}
	if err != nil {
		return b.failed("destroy", name, err)
	}
	// only root has a path to it now, and who had found it before is found by the second look
	err = b.bury(ctx, gone, r)
	if errors.Is(err, ErrInUse) {
		err = also(err, b.move(gone, name, r))
	}
	return b.failed("destroy", name, err)
}

// all returns the paths of all subvolumes of a dataset, its own first.
func (b *btrfs) all(name string, r *record) ([]string, error) {
	paths, err := within(b.path(name))
	if err != nil {
		return nil, err
	}
	snapshots, err := b.snapshotNames(r)
	for _, s := range snapshots {
		paths = append(paths, b.snapshotPath(r, s))
	}
	return paths, err
}

// within returns the paths of a subvolume and of those in it, its own first.
func within(path string) ([]string, error) {
	inside, err := nested(path)
	paths := []string{path}
	for _, n := range inside {
		paths = append(paths, n.path)
	}
	return paths, err
}

func (b *btrfs) path(name string) string { return filepath.Join(b.root, name) }

// failed says what could not be done, if err is an error, and wraps the error that fits.
func (b *btrfs) failed(verb, name string, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	fits := cmp.Or(
		match(text, ErrNoSpace, "No space left on device", "no space left on device"),
		match(text, ErrNoSpace, "Disk quota exceeded", "disk quota exceeded"),
		match(text, ErrUnavailable, "Read-only file system", "read-only file system"),
		match(text, ErrUnavailable, "not a btrfs filesystem"),
	)
	if fits != nil && !errors.Is(err, fits) {
		return fmt.Errorf("failed to %s dataset %s: %w: %w", verb, name, err, fits)
	}
	return fmt.Errorf("failed to %s dataset %s: %w", verb, name, err)
}

func match(text string, err error, parts ...string) error {
	if slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) }) {
		return err
	}
	return nil
}
