// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Programs that don't end even when they are killed, as those of a pool whose disk does not answer, are few, and none
// is waited for by what asks for another pool.
func TestRun_PoolThatHangsHoldsUpNoOther(t *testing.T) {
	dir := t.TempDir()
	hangs, path := filepath.Join(dir, "hangs"), filepath.Join(dir, "zfs")
	must.NoError(t, os.WriteFile(hangs, nil, 0o600))
	// what the killed program has started keeps its output open
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in *slow/*) while [ -e %[1]q ]; do sleep 0.1; done & wait ;; esac
echo answer
`, hangs)
	must.NoError(t, os.WriteFile(path, []byte(script), 0o755))
	slow, err := Open(path, "slow/root")
	must.NoError(t, err)
	t.Cleanup(func() {
		test.NoError(t, os.Remove(hangs))
		testsupport.Eventually(t, "the programs end", func() bool { return slow.program.hung.Load() == 0 })
	})
	var all sync.WaitGroup
	for range maxHung {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := slow.run(ctx, "list", slow.root)
			test.ErrorIs(t, err, ErrUnavailable)
		})
	}
	all.Wait()
	_, err = slow.run(t.Context(), "list", slow.root)
	must.ErrorIs(t, err, ErrUnavailable)
	must.ErrorContains(t, err, "8 calls of")

	other, err := Open(path, "quick/root")
	must.NoError(t, err)
	answer, err := other.run(t.Context(), "list", other.root)
	must.NoError(t, err)
	must.Eq(t, "answer\n", answer)
}
