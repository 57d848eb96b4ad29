// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package owndir

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestRemoveAll_RemovesSealedDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	for _, p := range []string{"sealed/deep", "closed/deep"} {
		must.NoError(t, os.MkdirAll(filepath.Join(dir, p), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(dir, p, "f"), nil, 0o444))
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{"sealed/deep", 0o555}, {"closed/deep", 0}, {"sealed", 0o555}, {"closed", 0}} {
		must.NoError(t, os.Chmod(filepath.Join(dir, d.path), d.mode))
	}
	if os.Geteuid() != 0 {
		must.Error(t, os.RemoveAll(dir),
			must.Sprint("os.RemoveAll removes them too: this tests nothing"))
	}
	test.NoError(t, RemoveAll(dir))
	_, err := os.Lstat(dir)
	test.True(t, os.IsNotExist(err), test.Sprintf("not removed: %v", err))
}

// A process that an installer has left running may replace directories with links during their removal.
func TestOpenUp_ChangesNothingOutsideTheTree(t *testing.T) {
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
