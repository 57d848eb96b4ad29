// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/dataset/simulate"
	"github.com/outrider-dev/outrider/plugins/dataset/simulate/simulatetest"
)

func TestPool_LeavesNothing(t *testing.T) {
	var dir string
	t.Run("btrfs", func(t *testing.T) {
		pool := simulatetest.New(t, "btrfs")
		dir = filepath.Dir(pool.Root)
		must.NoError(t, os.WriteFile(filepath.Join(pool.Root, "file"), []byte("x"), 0o600))
		must.NotEq(t, "", loops(t, dir))
	})
	if dir == "" {
		t.Skip("there was no pool") // said above
	}
	must.False(t, testsupport.Exists(dir))
	must.Eq(t, "", loops(t, dir))
}

// A Make that is killed leaves what Remove finds, at each step.
func TestRemove_AfterAKilledMake(t *testing.T) {
	pool := simulatetest.New(t, "btrfs")
	dir := filepath.Dir(pool.Root)
	must.NoError(t, exec.Command("umount", pool.Root).Run())
	must.NoError(t, exec.Command("losetup", "--find", filepath.Join(dir, "image")).Run()) // without autoclear
	must.NotEq(t, "", loops(t, dir))
	must.NoError(t, simulate.Remove(context.Background(), dir))
	must.Eq(t, "", loops(t, dir))
	must.False(t, testsupport.Exists(dir))

	must.NoError(t, os.Mkdir(dir, 0o700)) // nothing made yet
	must.NoError(t, simulate.Remove(context.Background(), dir))
	must.False(t, testsupport.Exists(dir))
}

func TestMake_NamesWhatIsMissing(t *testing.T) {
	testsupport.NeedRoot(t)
	dir := filepath.Join(t.TempDir(), "pool")
	t.Setenv("PATH", t.TempDir())
	if _, err := os.Stat("/usr/sbin/mkfs.btrfs"); err == nil {
		_, err := simulate.Make(t.Context(), "btrfs", dir, 1<<30)
		must.ErrorContains(t, err, "needs the program btrfs of the package btrfs-progs")
		must.ErrorIs(t, err, simulate.ErrMissing)
	}
	_, err := simulate.Make(t.Context(), "xfs", dir, 1<<30)
	must.EqError(t, err, `there is no pool "xfs": write btrfs or zfs-fuse`)
	must.False(t, testsupport.Exists(dir))
}

func TestRemove_RefusesAnotherDirectory(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	must.Error(t, simulate.Remove(t.Context(), dir))
	must.True(t, testsupport.Exists(filepath.Join(dir, "mine")))
	must.NoError(t, simulate.Remove(t.Context(), filepath.Join(dir, "none")))
}

func loops(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("losetup", "--noheadings", "--output", "NAME,BACK-FILE").CombinedOutput()
	must.NoError(t, err)
	var found string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) {
			found += line
		}
	}
	return found
}
