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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// LockDir is the directory of a node's locks.
const LockDir = "/run/outrider/dataset/locks"

// Lock waits until no other goroutine or process holds the lock of key, a volume's or slot's id.
// The lock is released by unlock or when the process ends.
func (e *Engine) Lock(ctx context.Context, key string) (unlock func(), err error) {
	if key == "" || strings.ContainsAny(key, "/\x00") || strings.HasPrefix(key, ".") {
		return nil, fmt.Errorf("%q can't be the id of a dataset", key)
	}
	dir, err := owndir.Make(e.Locks, 0o700)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path := filepath.Join(e.Locks, key)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("failed to open the lock of %q: %w", key, err)
		}
		if err = flock(f); err == nil {
			return func() {
				_ = os.Remove(path)
				f.Close()
			}, nil
		}
		f.Close()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("dataset %q is being changed by another process: %w", key, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// flock locks a file or directory, or fails with EWOULDBLOCK. It fails with ErrNotExist if the file is no
// longer at its path, because the previous owner of the lock may have removed it.
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

// SweepLocks removes the lock files of killed processes.
func (e *Engine) SweepLocks() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	files, _ := os.ReadDir(e.Locks)
	for _, f := range files {
		if unlock, err := e.Lock(now, f.Name()); err == nil {
			unlock()
		}
	}
}
