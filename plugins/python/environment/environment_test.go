// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// testDir returns a new directory that other users can enter, unlike t.TempDir. It is removed after the test.
func testDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "environment-test-")
	must.NoError(t, err)
	t.Cleanup(func() {
		(&store{log: t.Logf}).removeTree(dir)
		_, err := os.Lstat(dir)
		test.Error(t, err, test.Sprintf("%s still exists", dir))
	})
	must.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// builder returns the user of builds, or nil if the tests do not run as root. No other process runs as this user.
func builder() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: 79998, Gid: 79998}
}

func testCache(t testing.TB) *Cache {
	return Open(Config{Dir: filepath.Join(testDir(t), "cache"), Builder: builder(), Log: t.Logf})
}

// writeTree writes a tree like that of a virtual environment, with this many files in 10 directories.
func writeTree(dir string, files int) error {
	for i := range files {
		d := filepath.Join(dir, "lib", fmt.Sprintf("package%d", i%10))
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(d, fmt.Sprintf("module%d.py", i)), []byte("x = 1\n"), 0o644); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "activate"), nil, 0o755); err != nil {
		return err
	}
	if err := os.Symlink("activate", filepath.Join(dir, "bin", "python3")); err != nil {
		return err
	}
	return os.Symlink("lib", filepath.Join(dir, "lib64"))
}

// chownTree makes files look as if the builder had created them.
func chownTree(dir string, b *syscall.Credential) error {
	if b == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, int(b.Uid), int(b.Gid))
	})
}

type buildFunc = func(ctx context.Context, dir, scratch string) error

func building(files int) buildFunc {
	return func(_ context.Context, dir, _ string) error {
		if err := writeTree(dir, files); err != nil {
			return err
		}
		return chownTree(dir, builder())
	}
}

func failing(err error) buildFunc {
	return func(context.Context, string, string) error { return err }
}

func mustGet(t testing.TB, c *Cache, s Spec) *Environment {
	t.Helper()
	e, err := c.Get(t.Context(), s)
	must.NoError(t, err)
	return e
}

func mustTidy(t testing.TB, c *Cache) {
	t.Helper()
	must.NoError(t, c.Tidy(context.Background()))
}

// mustBeTidy checks that the cache has this many environments, that all are intact, and that nothing else is left.
func mustBeTidy(t testing.TB, c *Cache, environments int) {
	t.Helper()
	s, err := c.cfg.open()
	must.NoError(t, err)
	builds, err := s.names("builds")
	must.NoError(t, err, must.Sprint("builds has"))
	test.SliceEmpty(t, builds, test.Sprint("builds has"))
	entries, err := s.entries()
	must.NoError(t, err)
	for id, e := range entries {
		test.NoError(t, s.check(e), test.Sprint(id))
	}
	for dir, exactly := range map[string]bool{"meta": true, "envs": true, "users": false} {
		names, err := s.names(dir)
		must.NoError(t, err)
		test.True(t, len(names) == environments || !exactly && len(names) < environments,
			test.Sprintf("%s has %q for %d environments", dir, names, environments))
	}
}

func TestCache_BuildsOnce(t *testing.T) {
	c := testCache(t)
	first := mustGet(t, c, Spec{Key: "k", Build: building(30)})
	must.False(t, first.Hit)
	must.GreaterEq(t, 30*6, first.Size)
	first.Release()
	first.Release()
	second := mustGet(t, Open(c.cfg), Spec{Key: "k"})
	defer second.Release()
	must.True(t, second.Hit)
	must.Eq(t, first.Dir, second.Dir)
	must.Positive(t, second.Age)
	err := filepath.WalkDir(second.Dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if int(owner(info)) != os.Geteuid() || d.Type()&os.ModeSymlink == 0 && info.Mode()&0o222 != 0 {
			t.Errorf("%s is %v of user %d", p, info.Mode(), owner(info))
		}
		return nil
	})
	test.NoError(t, err)
	mustBeTidy(t, c, 1)
}

func TestCache_ReplacesAnOldEnvironment(t *testing.T) {
	c := testCache(t)
	s := Spec{Key: "k", Fresh: time.Nanosecond, Build: building(3)}
	first := mustGet(t, c, s)
	defer first.Release()
	s.Build = failing(testError{})
	if _, err := c.Get(t.Context(), s); err != (testError{}) {
		t.Errorf("got %v", err)
	}
	s.Build = building(4)
	second := mustGet(t, c, s)
	second.Release()
	must.False(t, second.Hit, must.Sprintf("got %+v", second))
	must.NotEq(t, first.Dir, second.Dir, must.Sprintf("got %+v", second))
	mustTidy(t, c)
	_, err := os.Stat(first.Dir)
	test.NoError(t, err, test.Sprint("the old environment was removed while in use"))
	first.Release()
	mustTidy(t, c)
	mustBeTidy(t, c, 1)
}

type testError struct{}

func (e testError) Error() string { return "the test's error" }
