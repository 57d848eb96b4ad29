//go:build unix

package cache

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

func TestLock_WaitsForTheHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan bool, 1)
	done := make(chan error)
	go func() {
		_, err := Lock(ctx, path, func() { told <- true })
		done <- err
	}()
	<-told // it waits, and says so
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("the waiting lock ended with %v", err)
	}
	unlock()
	again, err := Lock(t.Context(), path, func() { t.Error("waits for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	again()
}
