// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// For each release, a folder has two files: the record of an environment in use, and a list of all files in the cache.
const (
	metaFile   = "meta.json"
	layoutFile = "layout.txt"
)

var releasedSpec = Spec{Key: "cpython 3.11\nrich==13.9.4\n", Secret: "s", Build: building(3)}

const releasedTask = "/run/outrider/python/node/tasks/0123456789abcdef"

// recordCache records a cache with one environment, but not that environment's files, because uv defines their layout.
func recordCache(t *testing.T, dir string) {
	c := testCache(t)
	e := mustGet(t, c, releasedSpec)
	must.NoError(t, e.Acquire(releasedTask))
	e.Release()
	var layout strings.Builder
	must.NoError(t, filepath.WalkDir(c.cfg.Dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(c.cfg.Dir, path)
		if err != nil || strings.HasPrefix(rel, filepath.Join("envs", e.id)+"/") {
			return err
		}
		target, _ := os.Readlink(path)
		layout.WriteString(strings.TrimSpace(d.Type().String()+" "+rel+" "+target) + "\n")
		if filepath.Dir(rel) == "meta" {
			b, err := os.ReadFile(path)
			must.NoError(t, err)
			must.NoError(t, os.WriteFile(filepath.Join(dir, metaFile), b, 0o644))
		}
		return nil
	}))
	must.NoError(t, os.WriteFile(filepath.Join(dir, layoutFile), []byte(layout.String()), 0o644))
	testsupport.RecordFields(t, dir, entry{})
}

// This version reads the cache of each release, and does not remove an environment that a task of the release uses.
func TestCache_ReadsCachesOfEachRelease(t *testing.T) {
	testsupport.EachRelease(t, recordCache, func(t *testing.T, dir string) {
		testsupport.KeepsFields(t, dir, entry{})
		meta, err := os.ReadFile(filepath.Join(dir, metaFile))
		must.NoError(t, err)
		layout, err := os.ReadFile(filepath.Join(dir, layoutFile))
		must.NoError(t, err)
		c := testCache(t)
		s, err := c.cfg.open()
		must.NoError(t, err)
		task := filepath.Join(t.TempDir(), "task")
		must.NoError(t, os.Mkdir(task, 0o700))
		var id string
		for line := range strings.Lines(string(layout)) {
			f := strings.Fields(line)
			path := s.path(f[1])
			switch {
			case f[0][0] == 'd' && f[1] != ".":
				must.NoError(t, os.MkdirAll(path, 0o700))
			case f[0][0] == 'L':
				test.Eq(t, releasedTask, f[2])
				must.NoError(t, os.Symlink(task, path))
				id = filepath.Base(filepath.Dir(f[1]))
			case filepath.Dir(f[1]) == "meta":
				must.NoError(t, os.WriteFile(path, meta, 0o400)) // not writable: the environment was synced
			}
		}
		key := releasedSpec.key()
		for _, content := range [][]byte{meta, testsupport.LaterJSON(t, meta)} {
			path := s.entryPath(key)
			must.NoError(t, os.Remove(path), must.Sprint("another version uses another key for the same environment"))
			must.NoError(t, os.WriteFile(path, content, 0o400))
			e, err := s.readEntry(key)
			must.NoError(t, err)
			test.Eq(t, id, e.ID)
			test.Eq(t, releasedSpec.Key, e.Key)
			test.True(t, e.Built.After(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
		}
		used, err := s.inUse(id, func() {})
		must.NoError(t, err)
		test.True(t, used, test.Sprint("a task of another version uses it"))
		must.NoError(t, os.Remove(task))
		used, err = s.inUse(id, func() {})
		must.NoError(t, err)
		test.False(t, used, test.Sprint("the task has ended"))
	})
}
