// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

func TestWheelhouse_IsBounded(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int64{"a-1-py3-none-any.whl": 1000, "b-1-py3-none-any.whl": 1 << 40,
		"notes.txt": 1 << 40} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		must.NoError(t, os.Truncate(filepath.Join(dir, name), size))
	}
	_, err := newWheelhouse(t.Context(), dir, taskFiles{}, 1<<20, true)
	test.ErrorContains(t, err, "cache_max_size", test.Sprint("more than the limit"))
	_, err = newWheelhouse(t.Context(), dir, taskFiles{}, 1<<20, false)
	test.ErrorContains(t, err, "cache_max_size", test.Sprint("more than the limit, unread"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = newWheelhouse(ended, dir, taskFiles{}, 1<<50, true)
	test.ErrorIs(t, err, context.Canceled, test.Sprint("after the start was canceled"))
	must.NoError(t, os.Remove(filepath.Join(dir, "b-1-py3-none-any.whl")))
	h, err := newWheelhouse(t.Context(), dir, taskFiles{}, 1000, true)
	must.NoError(t, err)
	test.SliceLen(t, 1, h.wheel)
}

func TestWheelhouse_CopiesUnchangedWheelsOnly(t *testing.T) {
	dir, scratch := t.TempDir(), t.TempDir()
	wheel := filepath.Join(dir, "a-1-py3-none-any.whl")
	must.NoError(t, os.WriteFile(wheel, []byte("one"), 0o600))
	h, err := newWheelhouse(t.Context(), dir, taskFiles{}, 1000, true)
	must.NoError(t, err)
	defer unix.Umask(unix.Umask(0o077)) // the agent's service may have any
	indexes, err := (&sources{houses: []wheelhouse{h}}).into(t.Context(), scratch)
	must.NoError(t, err)
	copied := filepath.Join(indexes.FindLinks[0], filepath.Base(wheel))
	for path, want := range map[string]os.FileMode{indexes.FindLinks[0]: 0o755, copied: 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v: the builder has to read it", path, info.Mode(), err)
		}
	}
	must.NoError(t, os.WriteFile(wheel, []byte("two"), 0o600))
	_, err = (&sources{houses: []wheelhouse{h}}).into(t.Context(), t.TempDir())
	test.ErrorContains(t, err, "changed meanwhile", test.Sprint("another wheel in its place"))
}

func TestWheelhouse_IsNotReadWithHashes(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "a-1-py3-none-any.whl"), []byte("one"), 0o600))
	c := schema.Of[Config]().Default()
	c.Offline = true
	ended, cancel := context.WithCancel(t.Context())
	cancel() // so that reading a wheel fails
	hashed := &requirement.Set{Lines: []string{"a==1 --hash=sha256:" + strings.Repeat("0", 64)}, Hashed: true}
	for required, want := range map[*requirement.Set]error{hashed: nil, {Lines: []string{"a"}}: context.Canceled} {
		if _, err := newSources(ended, &c, &TaskConfig{FindLinks: []string{dir}}, taskFiles{}, required); !errors.Is(err,
			want) {
			t.Errorf("hashed %t: %v", required.Hashed, err)
		}
	}
	s, err := newSources(ended, &c, &TaskConfig{FindLinks: []string{dir}}, taskFiles{}, hashed)
	must.NoError(t, err)
	if _, err := s.into(ended, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("after the build was canceled: %v", err)
	}
	indexes, err := s.into(t.Context(), t.TempDir())
	must.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(indexes.FindLinks[0], "a-1-py3-none-any.whl"))
	test.Eq(t, "one", string(text), test.Sprintf("copied %q, %v", text, err))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "b-1-py3-none-any.whl"), 0o755))
	_, err = newSources(t.Context(), &c, &TaskConfig{FindLinks: []string{dir}}, taskFiles{}, hashed)
	test.Error(t, err, test.Sprint("a directory is taken for a wheel"))
}

func TestSources_DescribeTheNodesDirectories(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) func() {
		return func() { must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)) }
	}
	before := nodeDirectory(dir)
	for _, step := range []struct {
		what   string
		do     func()
		counts bool
	}{
		{"a wheel", file("a-1-py3-none-any.whl", "1"), true},
		{"another wheel of its name", file("a-1-py3-none-any.whl", "22"), true},
		{"a note", file("notes.txt", "1"), false},
		{"a source distribution", file("a-2.tgz", "1"), false},
		{"what a link will lead to", file("target", "1"), false},
		{"the link", func() { must.NoError(t, os.Symlink("target", filepath.Join(dir, "b-1-py3-none-any.whl"))) }, true},
		{"another target", file("target", "22"), true},
	} {
		step.do()
		after := nodeDirectory(dir)
		if slices.Equal(before, after) == step.counts {
			t.Errorf("%s: in the key %t", step.what, !step.counts)
		}
		before = after
	}
}
