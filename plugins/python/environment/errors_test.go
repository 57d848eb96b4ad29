// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestCache_HashesSecrets(t *testing.T) {
	c := testCache(t)
	dirs := map[string]bool{}
	for _, secret := range []string{"", "hunter2", "hunter3"} {
		e := mustGet(t, c, Spec{Key: "k", Secret: secret, Build: building(3)})
		e.Release()
		dirs[e.Dir] = true
		again := mustGet(t, Open(c.cfg), Spec{Key: "k", Secret: secret})
		again.Release()
	}
	test.MapLen(t, 3, dirs)
	err := filepath.WalkDir(c.cfg.Dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(p)
		test.StrNotContains(t, string(content), "hunter", test.Sprintf("%s has the secret", p))
		return err
	})
	test.NoError(t, err)
}

// Each round has one more file or 4 KiB more than the last, so the disk is full once at each step of a build.
func TestCache_SurvivesAFullDisk(t *testing.T) {
	testsupport.NeedRoot(t) // only root can mount a small disk
	dir := testDir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,nr_inodes=2,mode=755"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	t.Cleanup(func() {
		test.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) // a child between fork and exec may still have files open
	})
	state := testDir(t)
	failures := 0
	for _, step := range []struct {
		what  string
		limit func(n int) string
	}{
		{"files", func(n int) string { return fmt.Sprintf("nr_inodes=%d,size=4m", n) }},
		{"bytes", func(n int) string { return fmt.Sprintf("nr_inodes=1000,size=%dk", 4*n) }},
	} {
		for n := 3; ; n++ {
			must.False(t, n > 100, must.Sprint("it never succeeds"))
			c := Open(Config{Dir: filepath.Join(dir, fmt.Sprint(step.what, n)), Builder: builder(), Log: t.Logf})
			must.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT, step.limit(n)))
			s := Spec{Key: "k", Secret: "s", Build: building(3)}
			e, err := c.Get(t.Context(), s)
			if err == nil {
				err = e.Acquire(state)
				e.Release()
			}
			done := err == nil
			if !done {
				failures++
				test.ErrorIs(t, err, unix.ENOSPC, test.Sprintf("%d %s", n, step.what))
			}
			must.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "nr_inodes=1000,size=4m"))
			if !done {
				ids, err := (&store{dir: c.cfg.Dir}).names("builds")
				if len(ids) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%d %s: leftovers %v, %v", n, step.what, ids, err)
				}
			}
			again := mustGet(t, c, s)
			test.NoError(t, checkTree(again.Dir, 3))
			again.Release()
			mustTidy(t, c)
			mustBeTidy(t, c, 1)
			(&store{log: t.Logf}).removeTree(c.cfg.Dir)
			if done {
				break
			}
		}
	}
	t.Logf("%d failures", failures)
	test.False(t, failures < 20, test.Sprintf("only %d failures", failures))
}
