// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// sourcesOf returns the sources of a job with these find_links, on a node with this cache_max_size.
func sourcesOf(ctx context.Context, hashed bool, limit string, dirs ...string) (*sources, error) {
	c := schema.Of[Config]().Default()
	c.Offline, c.CacheMaxSize = true, schema.Size(limit)
	set := &requirement.Set{Lines: []string{"a==1 --hash=sha256:" + strings.Repeat("0", 64)}, Hashed: hashed}
	return newSources(ctx, &c, &TaskConfig{FindLinks: dirs}, taskFiles{}, set)
}

func TestWheelhouse_IsBounded(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int64{"a-1-py3-none-any.whl": 1000, "b-1-py3-none-any.whl": 1 << 40,
		"notes.txt": 1 << 40} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		must.NoError(t, os.Truncate(filepath.Join(dir, name), size))
	}
	half, again := t.TempDir(), t.TempDir()
	for _, dir := range []string{half, again} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "c-1-py3-none-any.whl"), make([]byte, 600<<10), 0o644))
	}
	for name, dirs := range map[string][]string{"one directory": {dir}, "two directories": {half, again}} {
		_, err := sourcesOf(t.Context(), false, "1MiB", dirs...)
		test.ErrorContains(t, err, "cache_max_size", test.Sprint("more than the limit: ", name))
		s, err := sourcesOf(t.Context(), true, "1MiB", dirs...)
		must.NoError(t, err)
		_, err = s.into(t.Context(), t.TempDir())
		test.ErrorContains(t, err, "cache_max_size", test.Sprint("more than the limit, for a build: ", name))
	}
	s, err := sourcesOf(t.Context(), false, "1MiB", half, half)
	must.NoError(t, err, must.Sprint("the same directory twice"))
	_, err = s.into(t.Context(), t.TempDir())
	test.NoError(t, err, test.Sprint("the same directory twice, for a build"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = sourcesOf(ended, false, "0B", dir)
	test.ErrorIs(t, err, context.Canceled, test.Sprint("after the start was canceled"))
}

func TestWheelhouse_CopiesUnchangedWheelsOnly(t *testing.T) {
	dir := t.TempDir()
	wheel := filepath.Join(dir, "a-1-py3-none-any.whl")
	must.NoError(t, os.WriteFile(wheel, []byte("one"), 0o600))
	s, err := sourcesOf(t.Context(), false, "1MiB", dir)
	must.NoError(t, err)
	defer unix.Umask(unix.Umask(0o077)) // the agent's service may have any umask
	indexes, err := s.into(t.Context(), t.TempDir())
	must.NoError(t, err)
	copied := filepath.Join(indexes.FindLinks[0], filepath.Base(wheel))
	for path, want := range map[string]os.FileMode{indexes.FindLinks[0]: 0o755, copied: 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v: the builder must be able to read it", path, info.Mode(), err)
		}
	}
	must.NoError(t, os.WriteFile(wheel, []byte("two"), 0o600))
	_, err = s.into(t.Context(), t.TempDir())
	test.ErrorContains(t, err, "changed while the task started", test.Sprint("another wheel in its place"))
	must.NoError(t, os.Remove(wheel))
	must.NoError(t, unix.Mkfifo(wheel, 0o644))
	_, err = sourcesOf(t.Context(), false, "1MiB", dir)
	test.ErrorContains(t, err, "not a regular file", test.Sprint("a pipe"))
}
