// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// fake writes a program that prints this version like `nomad version`, and returns its path.
func fake(t *testing.T, path, version string) string {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\necho 'Nomad v%s'\necho 'BuildDate 2026-01-01'\n", version)
	must.NoError(t, os.WriteFile(path, []byte(script), 0o755))
	return path
}

func TestBinary_SearchesPlacesInOrder(t *testing.T) {
	unreachable := errors.New("no route to host")
	const kept = "nomad-" + Version + "-" + runtime.GOARCH // the name in the cache
	for _, tc := range []struct {
		name             string
		env, path, cache string // versions of the programs there; empty: none
		release          error
		want             string // the name of the returned file
		complain         string
	}{
		{name: "NOMAD_BIN wins over everything", env: "2.0.4", path: "1.11.3", cache: "1.11.3", want: "env"},
		{name: "PATH wins over the cache", path: "1.11.1", cache: "1.11.3", want: "nomad"},
		{name: "an old nomad on PATH is ignored", path: "1.7.2", cache: "1.11.3", want: kept,
			complain: "Nomad 1.7.2"},
		{name: "a release is fetched if nothing is found", want: kept},
		{name: "nomad is built without a network", release: unreachable, want: kept, complain: "no route to host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("XDG_CACHE_HOME", dir)
			cached := filepath.Join(dir, "outrider", kept)
			must.NoError(t, os.Mkdir(filepath.Dir(cached), 0o755))
			t.Setenv("NOMAD_BIN", "")
			t.Setenv("PATH", dir+":/usr/bin:/bin")
			if tc.env != "" {
				t.Setenv("NOMAD_BIN", fake(t, filepath.Join(dir, "env"), tc.env))
			}
			if tc.path != "" {
				fake(t, filepath.Join(dir, "nomad"), tc.path)
			}
			if tc.cache != "" {
				fake(t, cached, tc.cache)
			}
			get := func(err error) func(context.Context, string) (string, error) {
				return func(_ context.Context, scratch string) (string, error) {
					if err != nil {
						return "", err
					}
					return fake(t, filepath.Join(scratch, "nomad"), Version), nil
				}
			}
			f := finder{release: get(tc.release), source: get(nil)}
			var shown []string
			got, err := f.find(t.Context(), func(s string, a ...any) { shown = append(shown, fmt.Sprintf(s, a...)) })
			must.NoError(t, err)
			must.Eq(t, tc.want, filepath.Base(got))
			test.True(t, filepath.IsAbs(got), test.Sprintf("path %q is not absolute", got))
			if tc.complain != "" && !strings.Contains(strings.Join(shown, "\n"), tc.complain) {
				t.Errorf("shown %q, want something with %q", shown, tc.complain)
			}
		})
	}
}

func TestBinary_RefusesABrokenNomadBin(t *testing.T) {
	dir := t.TempDir()
	silent := filepath.Join(dir, "silent")
	os.WriteFile(silent, []byte("#!/bin/sh\n"), 0o755)
	for name, tc := range map[string]struct{ path, want string }{
		"missing":   {filepath.Join(dir, "nothing"), "no such file"},
		"directory": {dir, "permission denied"},
		"not nomad": {silent, "version matches"},
		"too old":   {fake(t, filepath.Join(dir, "old"), "1.9.0"), "support only Nomad 1.11 and 2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NOMAD_BIN", tc.path)
			_, err := finder{}.find(t.Context(), t.Logf)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "NOMAD_BIN") {
				t.Errorf("error %v, want one about NOMAD_BIN with %q", err, tc.want)
			}
		})
	}
}
