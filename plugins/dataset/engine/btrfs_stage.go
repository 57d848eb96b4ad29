// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stage is a directory below .new in which a subvolume for one name is made. Its lock ends with
// the process: an unlocked one is left over, and any call removes it.
type stage struct {
	b    *btrfs
	name string
	dir  *os.File
}

func (s *stage) path(file string) string { return filepath.Join(s.dir.Name(), file) }
func (s *stage) data() string            { return s.path("data") }

// replacesFile is on a stage whose subvolume may be one that was at a name, and by whose id the
// snapshots of that dataset are kept. It sorts after the subvolume, and so is removed after it.
const replacesFile = "replaces"

// stage returns an empty one for a dataset to be made. ErrExists, ErrForeign.
func (b *btrfs) stage(ctx context.Context, name string) (*stage, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := b.ready(); err != nil {
		return nil, err
	}
	if _, err := b.quota(); err != nil {
		return nil, err
	}
	_ = b.sweep(ctx) // Check returns its error, which is of other datasets
	b.settle(name)
	if err := b.vacant(name); err != nil {
		return nil, err
	}
	return b.openStage(ctx, name)
}

// openStage returns an empty stage for a name.
func (b *btrfs) openStage(ctx context.Context, name string) (*stage, error) {
	if err := b.makeDir(newDir); err != nil {
		return nil, b.failed("make", name, err)
	}
	for {
		path := b.path(newDir + "/." + strings.ReplaceAll(name, "/", "~"))
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, b.failed("make", name, err)
		}
		s, err := b.lockStage(path)
		if err == nil {
			if err = s.clear(ctx); err != nil {
				s.dir.Close()
				return nil, b.failed("make", name, err)
			}
			return s, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, fs.ErrNotExist) {
			return nil, b.failed("make", name, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("dataset %s is being made by another process: %w", name, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// lockStage locks a stage that exists, or fails with EWOULDBLOCK or ErrNotExist.
func (b *btrfs) lockStage(path string) (*stage, error) {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := flock(dir); err != nil {
		dir.Close()
		return nil, err
	}
	name := strings.Replace(strings.TrimPrefix(filepath.Base(path), "."), "~", "/", 1)
	return &stage{b: b, name: name, dir: dir}, nil
}

// place moves the subvolume to its name, where the record has announced it.
func (s *stage) place(r *record) error {
	if err := s.b.makeDir(filepath.Dir(s.name)); err != nil {
		return err
	}
	if err := s.b.save(s.name, r); err != nil {
		return err
	}
	return renameNew(s.data(), s.b.path(s.name))
}

// clear removes what is on the stage, and the record of a subvolume that did not get from here
// to its name.
func (s *stage) clear(ctx context.Context) error {
	placed := exists(s.b.path(s.name))
	kept := placed || exists(s.path(replacesFile)) // the name may have been given up since
	if r, err := s.b.read(s.name); err == nil && !placed && (r.To == "" || r.To == s.name) {
		if err := s.b.forget(s.name); err != nil {
			return err
		}
	}
	return s.clearDir(ctx, s.dir.Name(), kept)
}

func (s *stage) clearDir(ctx context.Context, dir string, kept bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := e.Info()
		switch {
		case err != nil:
		case isSubvolume(info):
			if exists(s.path(replacesFile)) { // it may have been at the name, and have users
				err = s.b.unusedWithin(ctx, path)
			}
			if err == nil {
				// one that did not get to its name can have snapshots already, those of one that was there are kept
				err = s.b.condemn(ctx, path, !kept)
			}
		case info.IsDir():
			if err = s.clearDir(ctx, path, kept); err == nil {
				err = os.Remove(path)
			}
		default:
			err = os.Remove(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// close removes the stage. What fails here is done by a later sweep.
func (s *stage) close() {
	_ = s.clear(context.Background())
	_ = os.Remove(s.dir.Name())
	s.dir.Close()
}

// A dataset that is being destroyed is at goneName. A record of that name, also without the
// subvolume, goes last: when the qgroup has gone too, which outlives its subvolume for a while.
const gonePrefix = newDir + "/.gone."

func goneName(id uint64) string { return gonePrefix + strconv.FormatUint(id, 10) }

// condemn deletes a subvolume where it is, and its snapshots on demand. The caller has seen that
// nobody uses it. A read-only one can't be moved.
func (b *btrfs) condemn(ctx context.Context, path string, snapshots bool) error {
	s, err := subvolume(path)
	if err != nil {
		return err
	}
	r := &record{Subvolume: s.id}
	if snapshots {
		r.Key = s.id
	}
	if err := b.makeDir(newDir); err != nil {
		return err
	}
	if err := b.save(goneName(s.id), r); err != nil {
		return err
	}
	if err := b.deleteSubvolume(ctx, path); err != nil {
		return err
	}
	return b.bury(ctx, goneName(s.id), r)
}

// bury deletes what was moved to a goneName. It can be called again, and by several processes.
// ErrInUse if a process uses it, and then nothing is deleted.
func (b *btrfs) bury(ctx context.Context, gone string, r *record) error {
	if path := b.path(gone); exists(path) {
		paths, err := b.all(gone, r)
		if err == nil {
			err = b.unused(ctx, paths...)
		}
		if err == nil {
			err = b.deleteSubvolume(ctx, path)
		}
		if err != nil && exists(path) {
			return err
		}
	}
	snapshots, err := b.snapshotNames(r)
	if err != nil {
		return err
	}
	for _, name := range snapshots {
		if err := b.condemn(ctx, b.snapshotPath(r, name), false); err != nil && exists(b.snapshotPath(r, name)) {
			return err
		}
	}
	groups := []string{subvolumeGroup(r.Subvolume)}
	if r.Key != 0 {
		if err := remove(b.snapshotPath(r, "")); err != nil {
			return err
		}
		groups = append(groups, r.group())
	}
	for _, group := range groups {
		if left, err := b.removeGroup(ctx, group); left || err != nil {
			return err
		}
	}
	return remove(b.path(gone) + recordSuffix)
}

// sweep removes what processes that were killed have left below .new, and the records of what
// is deleted now. What a process uses stays for a later sweep, and is no error.
func (b *btrfs) sweep(ctx context.Context) error {
	entries, err := os.ReadDir(b.path(newDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to look for what was left over: %w", err)
	}
	for _, e := range entries {
		name := newDir + "/" + e.Name()
		if e.IsDir() && strings.HasPrefix(e.Name(), ".") && !strings.HasPrefix(name, gonePrefix) {
			if s, err := b.lockStage(b.path(name)); err == nil {
				s.close()
			}
			continue
		}
		name, ok := strings.CutSuffix(name, recordSuffix)
		if !ok || !strings.HasPrefix(name, gonePrefix) {
			continue
		}
		r, err := b.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = b.bury(ctx, name, r)
		}
		if err != nil && !errors.Is(err, ErrInUse) {
			return b.failed("destroy", name, err)
		}
	}
	return nil
}
