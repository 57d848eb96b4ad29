// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package simulatetest makes pools for tests.
package simulatetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/dataset/simulate"
)

// Size of a pool. Its file is sparse.
const Size = 1 << 30

// New makes a pool until the end of the test. It skips the test where the machine can't have
// one.
func New(t testing.TB) simulate.Pool {
	t.Helper()
	parent, err := os.MkdirTemp("", "pool")
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, os.RemoveAll(parent)) })
	must.NoError(t, os.Chmod(parent, 0o711)) // tasks are other users
	dir := filepath.Join(parent, "pool")
	t.Cleanup(func() { must.NoError(t, simulate.Remove(context.Background(), dir)) })
	pool, err := simulate.Make(t.Context(), dir, Size)
	if errors.Is(err, simulate.ErrMissing) {
		t.Skip(err)
	}
	must.NoError(t, err)
	return pool
}

// Unmount unmounts datasets, as a person would. A zfs-fuse that learns of the end of files after that of their mount,
// which the kernel tells in the background, hangs for good: an answer to another question comes after it.
func Unmount(t testing.TB, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		must.NoError(t, unix.Statfs(dir, &unix.Statfs_t{}))
	}
	time.Sleep(50 * time.Millisecond)
	for _, dir := range dirs {
		must.NoError(t, unix.Unmount(dir, 0))
	}
}
