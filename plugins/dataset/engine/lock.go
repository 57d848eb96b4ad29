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
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// LockDir is the directory of a node's locks.
const LockDir = "/run/outrider/dataset/locks"

// lock is the lock of a dataset, held by this process.
type lock struct {
	*os.File
	hangs atomic.Bool // an abandoned program may still hold the lock
}

// locksKey is the key of a context's locks.
type locksKey struct{}

// locks returns the locks that a context holds.
func locks(ctx context.Context) []*lock {
	held, _ := ctx.Value(locksKey{}).([]*lock)
	return held
}

// Lock locks the volume or slot whose id is key, or fails after the duration in wait. Programs started with the
// returned context also hold the lock, because the kernel may execute their last system call even after they and this
// process were killed. The lock is free once all these programs have ended, and this process has unlocked it or ended.
func (e *Engine) Lock(ctx context.Context, key string, wait time.Duration) (context.Context, func(), error) {
	if key == "" || strings.ContainsAny(key, "/\x00") || strings.HasPrefix(key, ".") {
		return nil, nil, fmt.Errorf("%q can't be the id of a dataset", key)
	}
	dir, err := owndir.Make(e.Locks, 0o700)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	path := filepath.Join(e.Locks, key)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("failed to open the lock of %q: %w", key, err)
		}
		if err = flock(f); err == nil {
			l := &lock{File: f}
			return context.WithValue(ctx, locksKey{}, append(slices.Clone(locks(ctx)), l)), func() {
				if !l.hangs.Load() {
					_ = os.Remove(path)
				}
				f.Close()
			}, nil
		}
		f.Close()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		select {
		case <-waiting.Done():
			return nil, nil, fmt.Errorf("dataset %q is being changed by another process: %w", key, waiting.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// flock locks a file, or fails with EWOULDBLOCK if the lock is held. It fails with ErrNotExist if the file is no longer
// at its path: the previous holder of the lock may have removed it.
func flock(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return os.NewSyscallError("flock", err)
	}
	locked, err := f.Stat()
	if err != nil {
		return err
	}
	now, err := os.Lstat(f.Name())
	if err == nil && !os.SameFile(locked, now) {
		err = fs.ErrNotExist
	}
	return err
}

// SweepLocks removes the lock files that killed processes have left.
func (e *Engine) SweepLocks() {
	files, _ := os.ReadDir(e.Locks)
	for _, f := range files {
		if _, unlock, err := e.Lock(context.Background(), f.Name(), 0); err == nil {
			unlock()
		}
	}
}
