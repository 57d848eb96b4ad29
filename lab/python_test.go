// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/nomad"
)

func TestPythons_AreShownWithUV(t *testing.T) {
	python := func(attributes map[string]string) []nomad.Driver {
		return []nomad.Driver{{Name: "exec-lite"}, {Name: "python", Attributes: attributes}}
	}
	for _, tc := range []struct {
		name    string
		drivers []nomad.Driver
		want    string
	}{
		{"without the driver", []nomad.Driver{{Name: "exec-lite"}}, ""},
		{"without interpreters", python(map[string]string{"version": "1"}), ""},
		{
			"without uv", []nomad.Driver{{Name: "python", Version: "1", Description: "there is no uv: install it"}},
			"Python   there is no uv: install it",
		},
		{
			"with all", python(map[string]string{"versions": "3.9,3.11,3.9.16,3.11.2", "uv.version": "0.8.13"}),
			"Python   3.9.16, 3.11.2; uv 0.8.13",
		},
	} {
		test.Eq(t, tc.want, pythons(tc.drivers), test.Sprint(tc.name))
	}
}

func TestDefaultDir_IsReachedByTasks(t *testing.T) {
	if os.Geteuid() != 0 {
		dir := t.TempDir()
		if got, want := defaultDir(dir), filepath.Join(dir, ".lab"); got != want {
			t.Errorf("somebody's own lab is in %s, want %s", got, want)
		}
		return
	}
	dir, err := os.MkdirTemp("/var/lib", "checkout-") // above which all is open, and root's
	must.NoError(t, err)
	defer os.Remove(dir)
	for _, tc := range []struct {
		name  string
		mode  os.FileMode
		owner int
		in    bool
	}{
		{"open", 0o755, 0, true},
		{"closed to others", 0o750, 0, false},
		{"somebody's", 0o755, 1000, false},
		{"a group's", 0o775, 0, false},
	} {
		must.NoError(t, errors.Join(os.Chmod(dir, tc.mode), os.Chown(dir, tc.owner, -1)))
		got := defaultDir(dir)
		must.Eq(t, tc.in, (got == filepath.Join(dir, ".lab")),
			must.Sprintf("the lab of a checkout that is %s is in %s", tc.name, got))
		test.NotEq(t, tc.in, filepath.Dir(got) == "/var/lib",
			test.Sprintf("the lab of a checkout that is %s is in %s", tc.name, got))
	}
}
