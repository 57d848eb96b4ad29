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

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Programs that hang even when killed, as on a failed disk, are limited in number, and delay no other pool.
func TestRun_HangingPoolDelaysNoOtherPool(t *testing.T) {
	t.Parallel() // the test waits for programs that hang
	dir := t.TempDir()
	hangs, path := filepath.Join(dir, "hangs"), filepath.Join(dir, "zfs")
	must.NoError(t, os.WriteFile(hangs, nil, 0o600))
	// the killed program seems to hang, because its child keeps its output open
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in *slow/*) (: >%[2]q.$$; while [ -e %[1]q ]; do sleep 0.1; done) & wait ;; esac
echo answer
`, hangs, filepath.Join(dir, "started"))
	must.NoError(t, os.WriteFile(path, []byte(script), 0o755))
	slow := Open(path, "slow/root")
	t.Cleanup(func() {
		test.NoError(t, os.Remove(hangs))
		testsupport.Eventually(t, "the programs end", func() bool { return slow.program.hung.Load() == 0 })
	})
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	var all sync.WaitGroup
	for range maxHung {
		all.Go(func() {
			_, err := slow.run(ctx, "list", slow.root)
			test.ErrorIs(t, err, ErrUnavailable)
		})
	}
	testsupport.Eventually(t, "all programs have started another one", func() bool {
		started, err := filepath.Glob(filepath.Join(dir, "started.*"))
		return err == nil && len(started) == maxHung
	})
	kill()
	all.Wait()
	_, err := slow.run(t.Context(), "list", slow.root)
	must.ErrorIs(t, err, ErrUnavailable)
	must.ErrorContains(t, err, "8 calls of it hang")

	other := Open(path, "quick/root")
	answer, err := other.run(t.Context(), "list", other.root)
	must.NoError(t, err)
	must.Eq(t, "answer\n", answer)
}
