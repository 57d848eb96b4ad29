// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package cache manages a directory of downloads and built programs that later runs use again. Programs share it by
// locks.
package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// Dir returns this project's directory in the user's cache. It might not exist yet.
func Dir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("failed to find the user's cache directory (set HOME or XDG_CACHE_HOME): %w", err)
	}
	return filepath.Join(dir, "outrider"), nil
}

// Lock takes an exclusive flock(2) on a file. If another process holds the lock, Lock calls waits once, unless it is
// nil, and waits until the lock is free or ctx ends. The kernel releases the lock when its holder exits.
func Lock(ctx context.Context, path string, waits func()) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("failed to create the cache directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("failed to open the cache lock: %w", err)
	}
	err = poll.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return true, err
		}
		if waits != nil {
			waits()
			waits = nil
		}
		return false, nil
	})
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("failed to lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// Once returns the path of a file or directory in the cache; an absolute name is already the path. If nothing exists
// there, create makes the file or directory in scratch and returns its path, and Once moves it to the final path. Only
// one process at a time calls create. progress reports the wait for another process.
func Once(ctx context.Context, name string, progress func(format string, args ...any),
	create func(scratch string) (created string, err error)) (string, error) {
	path := name
	if !filepath.IsAbs(name) {
		dir, err := Dir()
		if err != nil {
			return "", err
		}
		path = filepath.Join(dir, name)
	}
	unlock, err := Lock(ctx, path+".lock", func() { progress("waiting for another process that creates %s", path) })
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	scratch, err := os.MkdirTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	created, err := create(scratch)
	if err != nil {
		return "", err
	}
	return path, os.Rename(created, path)
}
