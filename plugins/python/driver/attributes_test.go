// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// nodesInterpreters are in Find's order.
var nodesInterpreters = []interpreter.Interpreter{
	{Path: "/opt/python/3.12/bin/python3.12", Version: "3.12.10", Minor: "3.12", Implementation: "cpython"},
	{Path: "/opt/python/old/bin/python3.12", Version: "3.12.9", Minor: "3.12", Implementation: "cpython"},
	{Path: "/usr/bin/python3.9", Version: "3.9.2", Minor: "3.9", Implementation: "cpython"},
	{Path: "/usr/local/bin/python3.14t", Version: "3.14.0", Minor: "3.14", Implementation: "cpython", FreeThreaded: true},
	{Path: "/usr/bin/pypy3.9", Version: "3.9.16", Minor: "3.9", Implementation: "pypy"},
}

func TestAttributes_NameEachInterpreter(t *testing.T) {
	all := attributes(nodesInterpreters)
	var got []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		test.NoError(t, all[name].Validate(), test.Sprint(name))
		got = append(got, fmt.Sprintf("%s=%#v", name, all[name]))
	}
	const want = `3.12.free_threaded=false
3.12.implementation=cpython
3.12.path=/opt/python/3.12/bin/python3.12
3.12.version=3.12.10
3.14.free_threaded=true
3.14.implementation=cpython
3.14.path=/usr/local/bin/python3.14t
3.14.version=3.14.0
3.9.free_threaded=false
3.9.implementation=cpython
3.9.path=/usr/bin/python3.9
3.9.version=3.9.2
default=3.12.10
default.path=/opt/python/3.12/bin/python3.12
versions=3.9,3.12,3.14,3.9.2,3.9.16,3.12.9,3.12.10,3.14.0`
	test.Eq(t, want, strings.Join(got, "\n"))
}

func TestAttributes_LeaveOutMinorsOfPreReleases(t *testing.T) {
	all := attributes([]interpreter.Interpreter{
		{Path: "/usr/bin/python3.14", Version: "3.14.0", Minor: "3.14"},
		{Path: "/opt/python/a/bin/python3.14", Version: "3.14.0rc2", Minor: "3.14"},
		{Path: "/opt/python/b/bin/python3.15", Version: "3.15.0rc1", Minor: "3.15"},
	})
	versions, _ := all["versions"].GetString()
	test.Eq(t, "3.14,3.14.0rc2,3.14.0,3.15.0rc1", versions, test.Sprint("versions are"))
	v, _ := all["3.15.version"].GetString()
	test.Eq(t, "3.15.0rc1", v, test.Sprint("3.15"))
}

func TestAttributes_AreNoneWithoutInterpreters(t *testing.T) {
	test.MapEmpty(t, attributes(nil))
}

func TestFingerprint_ReportsRejectedInterpreters(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	must.NoError(t, os.Chmod(dir, 0o755))
	broken, missing := filepath.Join(dir, "python3.12"), filepath.Join(dir, "python3.13")
	must.NoError(t, os.WriteFile(broken, []byte("#!/bin/sh\necho broken >&2\nexit 3\n"), 0o755))
	var log bytes.Buffer
	c := schema.Of[Config]().Default()
	c.CacheDir, c.Interpreters = filepath.Join(dir, "cache"), []string{"/usr/bin/python3", broken, missing}
	d, err := newInstance(c, hclog.New(&hclog.LoggerOptions{Output: &log}))
	must.NoError(t, err)
	for range 2 {
		all, err := d.Fingerprint(t.Context())
		if err != nil {
			t.Skip(err)
		}
		rejected, _ := all["rejected"].GetString()
		for _, want := range []string{broken + " is no interpreter for uv", missing + " matches no file"} {
			test.StrContains(t, rejected, want, test.Sprintf("%q is not in", want))
			if n := strings.Count(log.String(), want); n != 1 {
				t.Errorf("%q is %d times in the log: %s", want, n, log.String())
			}
		}
	}
}
