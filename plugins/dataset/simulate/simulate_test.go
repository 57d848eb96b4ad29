// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/dataset/simulate"
)

func TestMake_NamesWhatIsMissing(t *testing.T) {
	testsupport.NeedRoot(t)
	dir := filepath.Join(t.TempDir(), "pool")
	for _, place := range []string{"/usr/sbin/zfs-fuse", "/sbin/zfs-fuse"} {
		if info, err := os.Lstat(place); err == nil && info.Mode().IsRegular() { // this mount namespace is the test's
			must.NoError(t, unix.Mount("/dev/null", place, "", unix.MS_BIND, ""))
			t.Cleanup(func() { must.NoError(t, unix.Unmount(place, 0)) })
			break
		}
	}
	_, err := simulate.Make(t.Context(), dir, 1<<30)
	must.ErrorContains(t, err, "needs the program zfs-fuse of the package zfs-fuse")
	must.ErrorIs(t, err, simulate.ErrMissing)
	must.False(t, testsupport.Exists(dir))
}

func TestRemove_RefusesAnotherDirectory(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	must.Error(t, simulate.Remove(t.Context(), dir))
	must.True(t, testsupport.Exists(filepath.Join(dir, "mine")))
	must.NoError(t, simulate.Remove(t.Context(), filepath.Join(dir, "none")))
}
