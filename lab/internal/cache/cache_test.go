// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestLock_WaitsForTheHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, nil)
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan bool, 1)
	done := make(chan error)
	go func() {
		_, err := Lock(ctx, path, func() { waits <- true })
		done <- err
	}()
	<-waits
	cancel()
	must.ErrorIs(t, <-done, context.Canceled, must.Sprint("the waiting lock ended with"))
	unlock()
	again, err := Lock(t.Context(), path, func() { t.Error("waits without another holder") })
	must.NoError(t, err)
	again()
}

func TestOnce_CreatesAMissingFile(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	times, fails := 0, errors.New("it can't be made")
	get := func(err error) (string, error) {
		return Once(t.Context(), "thing", t.Logf, func(scratch string) (string, error) {
			times++
			made := filepath.Join(scratch, "part")
			return made, errors.Join(err, os.WriteFile(made, []byte("made"), 0o644))
		})
	}
	_, err := get(fails)
	must.ErrorIs(t, err, fails)
	for range 2 {
		path, err := get(nil)
		must.NoError(t, err)
		text, err := os.ReadFile(path)
		must.NoError(t, err)
		must.Eq(t, "made", string(text))
	}
	must.Eq(t, 2, times, must.Sprint("one failed attempt, and one that created the file"))
	dir, err := Dir()
	must.NoError(t, err)
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	must.NoError(t, err)
	must.Eq(t, []string{filepath.Join(dir, "thing"), filepath.Join(dir, "thing.lock")}, left)
	hidden, err := filepath.Glob(filepath.Join(dir, ".*"))
	must.NoError(t, err)
	must.SliceEmpty(t, hidden, must.Sprint("scratch directories still exist"))
}
