// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/landlock"
	"github.com/outrider-dev/outrider/internal/core/wheel"
	"github.com/outrider-dev/outrider/internal/core/wheel/wheeltest"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

const link = 0o120777 // S_IFLNK

func TestInstall_KeepsAWheelInsideTheEnvironment(t *testing.T) {
	outside := filepath.Join(os.TempDir(), "install-test-outside")
	tests := []struct {
		name  string
		files map[string]string
		modes map[string]uint32
		made  bool // uv may also succeed without that file
	}{
		{name: "a relative path upwards", files: map[string]string{"../../../../outside.py": "x"}, made: true},
		{name: "an absolute path", files: map[string]string{outside: "x"}, made: true},
		{name: "a console script outside", files: map[string]string{
			"evil-1.0.dist-info/entry_points.txt": "[console_scripts]\n../../planted = evil:main\n",
		}},
		{name: "a script outside", files: map[string]string{"evil-1.0.data/scripts/../../../outside.py": "x"}, made: true},
		{
			name:  "a link to a directory outside and a file in it",
			files: map[string]string{"out": os.TempDir(), "out/install-test-outside": "x"},
			modes: map[string]uint32{"out": link},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			i := uv(t)
			p := newPlace(t)
			wheeltest.Wheel{Name: "evil", Version: "1.0", Files: test.files, Modes: test.modes}.Write(t, p.wheels)
			if landlock.ABI() == 0 && strings.HasPrefix(test.name, "a console script") {
				t.Skip("the kernel has no Landlock")
			}
			before := list(t, p)
			err := i.Install(t.Context(), p.request(t, "evil"))
			t.Logf("the error: %v", err)
			var e *install.Error
			if errors.As(err, &e) {
				if e.Temporary {
					t.Errorf("the error is temporary: %v", e)
				}
			} else if !test.made || err != nil {
				t.Errorf("it was installed, or failed differently: %v", err)
			}
			if after := list(t, p); !slices.Equal(before, after) {
				t.Errorf("files outside of the environment changed from %q to %q", before, after)
			}
			if _, err := os.Lstat(outside); err == nil {
				t.Errorf("%s was made", outside)
				os.Remove(outside)
			}
		})
	}
}

// list returns all paths of a place, except those in its environment and its work directory.
func list(t *testing.T, p place) (names []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Dir(p.dir), func(name string, d os.DirEntry, err error) error {
		switch name {
		case p.env(), p.work():
			return filepath.SkipDir
		}
		names = append(names, name)
		return err
	})
	must.NoError(t, err)
	return names
}

func TestInstall_RunsNoStartupFileOfAWheel(t *testing.T) {
	i := uv(t)
	p := newPlace(t)
	marker := filepath.Join(p.work(), "ran")
	wheeltest.Wheel{Name: "evil", Version: "1.0", Files: map[string]string{
		"evil.pth":         "import os; os.system('id > " + marker + "')\n",
		"sitecustomize.py": "import os; os.system('id > " + marker + "')\n",
		"compileall.py":    "import os; os.system('id > " + marker + "')\n",
	}}.Write(t, p.wheels)
	err := i.Install(t.Context(), p.request(t, "evil"))
	must.NoError(t, err)
	text, err := os.ReadFile(marker)
	test.Error(t, err, test.Sprintf("it ran as %s", text))
}

func TestInstall_RunsNoCodeOfASourceDistribution(t *testing.T) {
	p := newPlace(t)
	marker := filepath.Join(p.work(), "ran")
	code := "open(" + quoted(marker) + ", 'w')"
	must.NoError(t, wheel.Wheel{Name: "source", Version: "1.0"}.WriteSource(p.wheels, code))
	e := fails(t, uv(t), p.request(t, "source"), false)
	must.StrContains(t, e.Error(), "with only wheels allowed")
	must.FileNotExists(t, marker)
}

func TestInstall_BuildsNoDependencyByURL(t *testing.T) {
	for name, url := range map[string]func(p place, index string) string{
		"a source distribution": func(_ place, index string) string { return index + "/files/evil-1.0.tar.gz" },
		"a directory":           func(p place, _ string) string { return "file://" + filepath.Join(p.wheels, "evil") },
		"a repository":          func(p place, _ string) string { return "git+file://" + filepath.Join(p.wheels, "evil") },
	} {
		t.Run(name, func(t *testing.T) {
			i := uv(t)
			p := newPlace(t)
			marker := filepath.Join(p.work(), "ran")
			code := "open(" + quoted(marker) + ", 'w').close()"
			must.NoError(t, wheel.Wheel{Name: "evil", Version: "1.0"}.WriteSource(p.wheels, code))
			must.NoError(t, os.Mkdir(filepath.Join(p.wheels, "evil"), 0o755))
			setup := code + "\nfrom setuptools import setup\nsetup(name='evil', version='1.0')\n"
			must.NoError(t, os.WriteFile(filepath.Join(p.wheels, "evil/setup.py"), []byte(setup), 0o644))
			url := url(p, wheeltest.Index(t, p.wheels).URL)
			wheeltest.Wheel{Name: "innocent", Version: "1.0", Requires: []string{"evil @ " + url}}.Write(t, p.wheels)
			r := p.request(t, "innocent")
			r.Sources = requirement.Sources{URL: wheeltest.Index(t, p.wheels).URL + "/simple"}
			e := fails(t, i, r, false)
			must.StrContains(t, e.Error(), "with only wheels allowed")
			must.FileNotExists(t, marker)
		})
	}
}

func quoted(s string) string { return "'" + s + "'" }
