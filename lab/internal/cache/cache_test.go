// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cache

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestLock_WaitsForTheHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, nil)
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan bool, 1)
	done := make(chan error)
	go func() {
		_, err := Lock(ctx, path, func() { told <- true })
		done <- err
	}()
	<-told // it waits, and says so
	cancel()
	must.ErrorIs(t, <-done, context.Canceled, must.Sprint("the waiting lock ended with"))
	unlock()
	again, err := Lock(t.Context(), path, func() { t.Error("waits for nobody") })
	must.NoError(t, err)
	again()
}
