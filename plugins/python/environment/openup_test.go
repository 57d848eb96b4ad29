// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// A process that an installer left may exchange its directories while they are removed.
func TestOpenUp_StaysInTheTree(t *testing.T) {
	victim, dir := filepath.Join(t.TempDir(), "victim"), filepath.Join(t.TempDir(), "env")
	for _, path := range []string{victim, dir} {
		must.NoError(t, os.Mkdir(path, 0o755))
	}
	a, b := filepath.Join(dir, "a"), filepath.Join(t.TempDir(), "b")
	must.NoError(t, os.Mkdir(a, 0o755))
	must.NoError(t, os.Symlink(victim, b))
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 500 {
		openUp(dir)
		if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("a directory elsewhere has mode %v now, %v", info.Mode(), err)
			break
		}
	}
	close(stop)
	swapping.Wait()
}
