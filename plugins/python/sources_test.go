package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAWheelhouseIsReadWithinBounds(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int64{"a-1-py3-none-any.whl": 1000, "b-1-py3-none-any.whl": 1 << 40, "notes.txt": 1 << 40} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		must(t, os.Truncate(filepath.Join(dir, name), size))
	}
	if _, err := newWheelhouse(t.Context(), dir, taskFiles{}, 1<<20); err == nil || !strings.Contains(err.Error(), "cache_max_size") {
		t.Errorf("more than the limit: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newWheelhouse(ended, dir, taskFiles{}, 1<<50); !errors.Is(err, context.Canceled) {
		t.Errorf("when nobody waits any more: %v", err)
	}
	must(t, os.Remove(filepath.Join(dir, "b-1-py3-none-any.whl")))
	if h, err := newWheelhouse(t.Context(), dir, taskFiles{}, 1000); err != nil || len(h.wheel) != 1 {
		t.Errorf("got %v, %v", h.wheel, err)
	}
}

func TestWheelsOfAJobAreCopiedAsTheyWereLookedAt(t *testing.T) {
	dir, scratch := t.TempDir(), t.TempDir()
	wheel := filepath.Join(dir, "a-1-py3-none-any.whl")
	must(t, os.WriteFile(wheel, []byte("one"), 0o600))
	h, err := newWheelhouse(t.Context(), dir, taskFiles{}, 1000)
	must(t, err)
	defer unix.Umask(unix.Umask(0o077)) // the agent's service may have any
	indexes, err := (&sources{houses: []wheelhouse{h}}).into(t.Context(), scratch)
	must(t, err)
	copied := filepath.Join(indexes.FindLinks[0], filepath.Base(wheel))
	for path, want := range map[string]os.FileMode{indexes.FindLinks[0]: 0o755, copied: 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v: the builder has to read it", path, info.Mode(), err)
		}
	}
	must(t, os.WriteFile(wheel, []byte("two"), 0o600))
	if _, err := (&sources{houses: []wheelhouse{h}}).into(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
		t.Errorf("another wheel in its place: %v", err)
	}
}
