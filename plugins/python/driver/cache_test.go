// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/python/environment"
)

// cache returns the output of the command cache.
func (a *agent) cache(line ...string) string {
	a.t.Helper()
	var out strings.Builder
	must.NoError(a.t, cacheCommand(a.t.Context(), append(line, "-dir", filepath.Join(a.dir, "cache")), &out))
	return out.String()
}

func (a *agent) cached(line ...string) (all []environment.Cached) {
	a.t.Helper()
	out := a.cache(append(line, "-json")...)
	must.NoError(a.t, json.Unmarshal([]byte(out), &all), must.Sprint(out))
	return all
}

// Two plugins share a cache, and the operator prunes it while their tasks run.
func TestCacheCommand_KeepsEnvironmentsInUse(t *testing.T) {
	a := start(t)
	b := start(t, func(c *Config) { c.CacheDir = filepath.Join(a.dir, "cache") })
	gate := filepath.Join(a.dir, "gate")
	waits := fmt.Sprintf("import os, time\nwhile not os.path.exists(%q): time.sleep(0.01)\n", gate) + useMoon
	one, two := a.withMoon(waits, "moon-phase"), b.withMoon(waits, "moon-phase")
	_, _, err := a.StartTask(one)
	must.NoError(t, err)
	_, _, err = b.StartTask(two)
	must.NoError(t, err)
	b.says(two, "cache hit")
	a.runs(a.withMoon(useMoon, "moon-phase>=1"))

	all := a.cached("list")
	must.SliceLen(t, 2, all)
	used, unused := all[0], all[1] // list prints the least recently used environment first
	must.SliceLen(t, 2, used.Tasks)
	must.SliceEmpty(t, unused.Tasks)
	test.Eq(t, []string{"moon_phase-1.2"}, used.Packages)
	test.StrContains(t, a.cache("list"), used.ID+"  ")
	test.SliceEmpty(t, a.cached("prune", "-unused", "1h"))

	pruned := a.cached("prune")
	must.SliceLen(t, 1, pruned)
	test.Eq(t, unused.Dir, pruned[0].Dir)
	test.DirNotExists(t, unused.Dir)
	must.Eq(t, []environment.Cached{used}, a.cached("list"))
	must.NoError(t, os.WriteFile(gate, nil, 0o644))
	test.Eq(t, 0, a.wait(one).ExitCode)
	test.Eq(t, 0, b.wait(two).ExitCode)
	must.NoError(t, a.DestroyTask(one.ID, true))
	test.SliceEmpty(t, a.cached("prune"), test.Sprint("a task of the other plugin uses it"))
	must.NoError(t, b.DestroyTask(two.ID, true))
	testsupport.Eventually(t, "it is unused", func() bool { return len(a.cached("prune")) == 1 })
	test.SliceEmpty(t, a.cached("list"))
	test.Eq(t, "1.2 "+used.Dir+"\n", a.output(one, "stdout"))
}

func TestCacheCommand_RefusesInvalidArguments(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "cache/meta"), 0o755))
	for line, want := range map[string]string{
		"list":            "is not a cache of environments",
		"prune":           "is not a cache of environments",
		"list 4f1c09aa":   "usage: cache",
		"destroy":         "usage: cache",
		"list -dir cache": "is not absolute",
	} {
		args := strings.Fields(line)
		if !strings.Contains(line, "-dir") {
			args = append(args, "-dir", dir)
		}
		err := cacheCommand(t.Context(), args, &strings.Builder{})
		test.ErrorContains(t, err, want, test.Sprint(line))
	}
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	test.SliceLen(t, 1, entries, test.Sprint("a directory that is not a cache was changed"))
}
