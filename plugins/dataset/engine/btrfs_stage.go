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

// stage returns an empty one for a dataset to be made. ErrExists, ErrForeign.
func (b *btrfs) stage(ctx context.Context, name string) (*stage, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := b.ready(); err != nil {
		return nil, err
	}
	if err := b.sweep(ctx); err != nil {
		return nil, err
	}
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
			s.name = name
			return s, s.clear(ctx)
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
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil { // the former holder may have removed it
		var mine, now fs.FileInfo
		if mine, err = dir.Stat(); err == nil {
			if now, err = os.Lstat(path); err == nil && !os.SameFile(mine, now) {
				err = fs.ErrNotExist
			}
		}
	}
	if err != nil {
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
	if !exists(s.b.path(s.name)) {
		if r, err := s.b.read(s.name); err == nil && (r.To == "" || r.To == s.name) {
			if err := remove(s.b.path(s.name) + recordSuffix); err != nil {
				return err
			}
		}
		if err := remove(s.b.path(s.name) + recordSuffix + ".tmp"); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(s.dir.Name())
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && isSubvolume(info) {
			err = s.b.condemn(ctx, s.path(e.Name()))
		} else if err == nil {
			err = os.Remove(s.path(e.Name()))
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

// What is to be deleted is at goneName, with a record beside it that goes last: when the
// qgroup, which outlives its subvolume for a while, has gone too.
const gonePrefix = newDir + "/.gone."

func goneName(id uint64) string { return gonePrefix + strconv.FormatUint(id, 10) }

// condemn deletes one subvolume that nobody uses.
func (b *btrfs) condemn(ctx context.Context, path string) error {
	id, err := subvolumeID(path)
	if err != nil {
		return err
	}
	r := &record{Subvolume: id}
	if err := b.save(goneName(id), r); err != nil {
		return err
	}
	if err := renameNew(path, b.path(goneName(id))); err != nil {
		return err
	}
	return b.bury(ctx, goneName(id), r)
}

// bury deletes what was moved to a goneName. It can be called again, and by several processes.
func (b *btrfs) bury(ctx context.Context, gone string, r *record) error {
	path := b.path(gone)
	if r.Key != 0 {
		snapshots := b.path(filepath.Join(snapshotsDir, strconv.FormatUint(r.Key, 10)))
		entries, err := os.ReadDir(snapshots)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if err := b.condemn(ctx, filepath.Join(snapshots, e.Name())); err != nil {
				return err
			}
		}
		if err := remove(snapshots); err != nil {
			return err
		}
	}
	if exists(path) {
		if err := b.deleteSubvolume(ctx, path); err != nil && exists(path) {
			return err
		}
	}
	groups := []string{subvolumeGroup(r.Subvolume)}
	if r.Key != 0 {
		groups = append(groups, r.group())
	}
	for _, group := range groups {
		if left, err := b.removeGroup(ctx, group); left || err != nil {
			return err
		}
	}
	return remove(path + recordSuffix)
}

// sweep removes what processes that were killed have left below .new, and the records of what
// is deleted now.
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
		if err != nil {
			return b.failed("destroy", name, err)
		}
	}
	return nil
}
