// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// patience is enough on a machine that is overloaded.
const patience = time.Minute

// system is the distribution's interpreter.
func system(t testing.TB) Interpreter {
	t.Helper()
	found := find(t, &Finder{Globs: []string{"/usr/bin/python3*"}, timeout: patience})
	if len(found) == 0 {
		t.Skip("there is no python3 in /usr/bin")
	}
	return found[0]
}

func TestFinder_FindsTheDistributionsPython(t *testing.T) {
	i := system(t)
	out, err := exec.Command("/usr/bin/python3", "-c",
		"import platform, sys, sysconfig; print(platform.python_version(), sys.prefix, "+
			"sysconfig.get_config_var('SOABI'), sysconfig.get_platform())").Output()
	must.NoError(t, err)
	if got, want := strings.Join([]string{i.Version, i.Prefix, i.ABI, i.Platform}, " "),
		strings.TrimSpace(string(out)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	must.Eq(t, "/usr/bin/python"+i.Minor, i.Path, must.Sprintf("got %+v", i))
	must.Eq(t, i.Path, i.Real, must.Sprintf("got %+v", i))
	must.SliceContainsOp(t, i.Names, "/usr/bin/python3", must.Sprintf("got %+v", i))
	must.Eq(t, "cpython", i.Implementation, must.Sprintf("got %+v", i))
	test.False(t, i.FreeThreaded, test.Sprintf("got %+v", i))
	if !strings.HasPrefix(i.Full, i.Version+" (") || !strings.HasPrefix(i.Libc, "glibc ") && i.Libc != "musl" ||
		i.File.Inode == 0 || i.File.Size == 0 || i.File.ModTime == 0 {
		t.Errorf("got %+v", i)
	}
}

func TestFinder_IgnoresVirtualEnvironments(t *testing.T) {
	i := system(t)
	dir := t.TempDir()
	if out, err := exec.Command(i.Path, "-m", "venv", "--without-pip", dir+"/venv").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f := &Finder{Globs: []string{dir + "/venv/bin/python3*", "/usr/bin/python3*"}, timeout: patience}
	found := find(t, f)
	n := slices.IndexFunc(found, func(f Interpreter) bool { return f.Path == i.Path })
	must.False(t, n < 0, must.Sprintf("%s is gone: %+v", i.Path, found))
	for _, f := range found {
		for _, name := range f.Names {
			test.False(t, strings.HasPrefix(name, dir), test.Sprintf("%s is taken for %s", name, f.Path))
		}
	}
	mentions(t, search(t, f).Rejected, dir+"/venv/bin/python", "is of a virtual environment")
	// a link from elsewhere to an interpreter is a name of it
	must.NoError(t, os.Symlink(i.Path, dir+"/python3"))
	f = &Finder{Globs: []string{dir + "/python3", "/usr/bin/python3*"}, timeout: patience}
	chosen, err := choose(find(t, f), dir+"/python3", pep(t, ""))
	must.NoError(t, err)
	test.Eq(t, i.Path, chosen.Path)
}

func TestFinder_FindsPyPy(t *testing.T) {
	found := find(t, &Finder{Globs: []string{"/usr/bin/pypy3*"}, timeout: patience})
	if len(found) == 0 {
		t.Skip("there is no pypy3 in /usr/bin")
	}
	i := found[0]
	must.Eq(t, "pypy", i.Implementation, must.Sprintf("got %+v", i))
	must.StrHasPrefix(t, "pypy", i.ABI, must.Sprintf("got %+v", i))
	must.StrContains(t, i.Full, "PyPy", must.Sprintf("got %+v", i))
	must.Eq(t, "pypy"+i.Minor, filepath.Base(i.Path), must.Sprintf("got %+v", i))
	test.Eq(t, i.Version+" (pypy)", i.String(), test.Sprintf("got %+v", i))
}
