// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/install"
)

func TestFind_SearchesAgainWhenTheFileChanges(t *testing.T) {
	first, second := filepath.Join(t.TempDir(), "uv"), filepath.Join(t.TempDir(), "uv")
	t.Setenv("PATH", filepath.Dir(first)+":"+filepath.Dir(second))
	write := func(path, text string) {
		must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	f := install.NewFinder("", nil, nil)
	finds := func(version string) {
		t.Helper()
		i, err := f.Find(t.Context())
		must.NoError(t, err)
		test.Eq(t, version, i.Version)
	}
	write(second, "echo uv 1.2.3")
	finds("1.2.3")
	write(second, "echo uv 1.2.30")
	finds("1.2.30")
	must.NoError(t, os.Remove(second))
	write(first, "echo uv 4.5.6")
	finds("4.5.6")
	must.NoError(t, os.Remove(first))
	write(first, "echo uv 4.5.67")
	file, err := os.OpenFile(first, os.O_WRONLY, 0) // as during an installation: a file open for writing cannot be run
	must.NoError(t, err)
	_, err = f.Find(t.Context())
	var e *install.Error
	must.True(t, errors.As(err, &e) && e.Temporary, must.Sprint(err))
	must.NoError(t, file.Close())
	finds("4.5.67")
}

func TestFind_ChoosesTheConfiguredInstaller(t *testing.T) {
	p := newPlace(t)
	program := func(name, text string) string {
		path := filepath.Join(p.wheels, name, "uv")
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
		return path
	}
	good := program("good", "echo 'uv 9.8.7 (abc 2026-01-01)'")
	other := program("other", "echo something else")
	broken := program("broken", "exit 3")
	closed := program("closed", "echo uv 9.8.7")
	must.NoError(t, os.Chmod(closed, 0o644))

	tests := []struct{ name, uv, path, is, says string }{
		{name: "the configured program", uv: good, is: "uv 9.8.7"},
		{name: "the first program on PATH", path: filepath.Dir(good) + ":" + filepath.Dir(other), is: "uv 9.8.7"},
		{name: "a program that fails", uv: broken, says: "exit status 3"},
		{name: "a file that is not executable", uv: closed, says: "permission denied"},
		{name: "another program", uv: other, says: "is not uv"},
		{name: "a version that is too old", uv: program("old", "echo uv 0.6.13"), says: "oldest supported version is 0.6.14"},
		{name: "a missing program", uv: "/nonexistent/uv", says: "/nonexistent/uv"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.path != "" {
				t.Setenv("PATH", test.path)
			}
			i, err := install.NewFinder(test.uv, nil, builder()).Find(t.Context())
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("the error is %v", err)
				}
			} else if err != nil || i.String() != test.is {
				t.Errorf("found %s: %v", i, err)
			}
		})
	}
}
