// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// fake is a directory with interpreters that are none, and a uv that lists them.
type fake struct {
	t   *testing.T
	dir string
	*Finder
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, dir: t.TempDir()}
	uv := filepath.Join(f.dir, "uv")
	script := "#!/bin/sh\ncd DIR\necho $PATH >> asked\ntest -f list || exit 3\n/bin/cat list\n"
	must.NoError(t, os.WriteFile(uv, []byte(strings.ReplaceAll(script, "DIR", f.dir)), 0o755))
	f.Finder = NewFinder([]string{f.dir + "/*/bin/*3*"}, nil, func(context.Context) (string, error) { return uv, nil })
	return f
}

// has makes an interpreter, and returns what uv says of it.
func (f *fake) has(path, version, implementation, variant string) string {
	path = filepath.Join(f.dir, path)
	must.NoError(f.t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(f.t, os.WriteFile(path, []byte(version), 0o755))
	return fmt.Sprintf(`{"path":%q,"version":%q,"implementation":%q,"variant":%q,"os":"linux","arch":"x86_64","libc":"gnu"}`,
		path, version, implementation, variant)
}

func (f *fake) lists(all ...string) {
	must.NoError(f.t, os.WriteFile(f.dir+"/list", []byte("["+strings.Join(all, ",")+"]"), 0o644))
}

func (f *fake) asked() int {
	content, _ := os.ReadFile(f.dir + "/asked")
	return strings.Count(string(content), "\n")
}

func versionsIn(found Found) (all []string) {
	for _, i := range found.Interpreters {
		all = append(all, i.String())
	}
	return all
}

func TestFinder_OrdersTheBestFirst(t *testing.T) {
	f := newFake(t)
	f.lists(
		f.has("a/bin/python3.11", "3.11.2", "cpython", "default"),
		f.has("b/bin/pypy3.10", "3.10.1", "pypy", "default"),
		f.has("c/bin/python3.15", "3.15.0rc1", "cpython", "default"),
		f.has("d/bin/python3.13", "3.13.1", "cpython", "default"),
		f.has("e/bin/python3.14t", "3.14.0", "cpython", "freethreaded"),
		f.has("f/bin/python3.7", "3.7.9", "cpython", "default"),
	)
	f.has("g/bin/python3.12", "3.12.0", "cpython", "default") // which uv does not list
	f.has("h/bin/python3-config", "", "", "")
	found, err := f.Find(t.Context())
	must.NoError(t, err)
	must.Eq(t, []string{"3.13.1", "3.11.2", "3.15.0rc1", "3.14.0 (free-threaded)", "3.10.1 (pypy)"}, versionsIn(found))
	must.Eq(t, "3.15", found.Interpreters[2].Minor)
	must.Eq(t, "linux-x86_64", found.Interpreters[0].Platform)
	must.SliceLen(t, 2, found.Rejected)
	must.StrContains(t, found.Rejected[0], "is Python 3.7.9, and 3.8 or later is used")
	must.StrContains(t, found.Rejected[1], "g/bin/python3.12 is no interpreter for uv")
}

func TestFinder_MergesNamesOfOneFile(t *testing.T) {
	f := newFake(t)
	f.lists(f.has("a/bin/python3.11", "3.11.2", "cpython", "default"))
	dir := filepath.Join(f.dir, "a/bin")
	must.NoError(t, os.Symlink("python3.11", dir+"/python3"))
	must.NoError(t, os.MkdirAll(f.dir+"/venv/bin", 0o755))
	must.NoError(t, os.WriteFile(f.dir+"/venv/pyvenv.cfg", nil, 0o644))
	must.NoError(t, os.Symlink(dir+"/python3.11", f.dir+"/venv/bin/python3"))
	must.NoError(t, os.Symlink("gone", dir+"/python3.12"))
	found, err := f.Find(t.Context())
	must.NoError(t, err)
	must.SliceLen(t, 1, found.Interpreters)
	must.Eq(t, dir+"/python3.11", found.Interpreters[0].Path)
	names := found.Interpreters[0].Names
	slices.Sort(names)
	must.Eq(t, []string{dir + "/python3", dir + "/python3.11"}, names)
	must.SliceLen(t, 2, found.Rejected)
	must.StrContains(t, strings.Join(found.Rejected, "\n"), "python3.12 can't be used: no such file")
	must.StrContains(t, strings.Join(found.Rejected, "\n"), "venv/bin/python3 is no interpreter for uv")
}

func TestFinder_AsksAgainWhenAFileChanges(t *testing.T) {
	f := newFake(t)
	one := f.has("a/bin/python3.11", "3.11.2", "cpython", "default")
	f.lists(one)
	finds := func(asked int, want ...string) {
		t.Helper()
		found, err := f.Renew(t.Context())
		must.NoError(t, err)
		must.Eq(t, want, versionsIn(found))
		must.Eq(t, asked, f.asked())
	}
	finds(1, "3.11.2")
	finds(1, "3.11.2")
	two := f.has("b/bin/python3.12", "3.12.1", "cpython", "default")
	f.lists(one, two)
	finds(2, "3.12.1", "3.11.2")
	f.lists(one, f.has("b/bin/python3.12", "3.12.10", "cpython", "default"))
	finds(3, "3.12.10", "3.11.2")
	must.NoError(t, os.RemoveAll(f.dir+"/b"))
	f.lists(one)
	finds(4, "3.11.2")
	last := *f.last.Load()
	last.at = last.at.Add(-2 * listAgain)
	f.last.Store(&last)
	_, err := f.Find(t.Context())
	must.NoError(t, err)
	must.Eq(t, 4, f.asked(), must.Sprint("a start waits"))
	must.NoError(t, os.Remove(f.dir+"/list"))
	finds(5, "3.11.2") // though uv fails
	must.NoError(t, os.RemoveAll(f.dir+"/a"))
	f.has("c/bin/python3.12", "3.12.1", "cpython", "default")
	_, err = f.Find(t.Context())
	must.ErrorContains(t, err, "uv python list failed: exit status 3")
}

func TestFinder_AsksOnceForAll(t *testing.T) {
	f := newFake(t)
	f.lists(f.has("a/bin/python3.11", "3.11.2", "cpython", "default"))
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			found, err := f.Find(t.Context())
			must.NoError(t, err)
			test.SliceLen(t, 1, found.Interpreters)
		})
	}
	all.Wait()
	test.Eq(t, 1, f.asked())
}

func TestFinder_ReportsThatThereIsNoUV(t *testing.T) {
	none := errors.New("there is none")
	f := newFake(t)
	f.has("a/bin/python3.11", "3.11.2", "cpython", "default")
	f.UV = func(context.Context) (string, error) { return "", none }
	_, err := f.Find(t.Context())
	test.ErrorIs(t, err, none)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	f.listing <- struct{}{}
	_, err = f.Find(ended)
	test.ErrorIs(t, err, context.Canceled)
}

func TestFinder_RefusesBadGlobs(t *testing.T) {
	_, err := NewFinder([]string{"/opt/[x"}, nil, nil).Find(t.Context())
	test.ErrorContains(t, err, "/opt/[x")
}

func TestDefaultGlobs_FollowTheEnvironment(t *testing.T) {
	t.Setenv("HOME", "/home/a[b]")
	t.Setenv("PYENV_ROOT", "/srv/pyenv")
	t.Setenv("UV_PYTHON_INSTALL_DIR", "relative")
	globs := defaultGlobs()
	for _, want := range []string{
		"/usr/bin/python3", "/usr/bin/pypy3.11", "/srv/pyenv/versions/3.12.1/bin/python3.12",
		"/home/a[b]/.local/share/uv/python/x/bin/pypy3",
	} {
		test.True(t, slices.ContainsFunc(globs, func(g string) bool { ok, _ := filepath.Match(g, want); return ok }),
			test.Sprintf("%s is not found by %q", want, globs))
	}
	for _, g := range globs {
		_, err := filepath.Match(g, "")
		must.NoError(t, err, must.Sprintf("%s is no glob", g))
		test.True(t, filepath.IsAbs(g), test.Sprintf("%s is no glob", g))
	}
}

// nobody is another user, where the test is root.
func nobody() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534}
}

func TestFinder_FindsTheDistributionsPython(t *testing.T) {
	testsupport.NeedPython(t)
	uv := wheeltest.UV(t, nobody())
	f := NewFinder(nil, nobody(), func(context.Context) (string, error) { return uv, nil })
	found, err := f.Find(t.Context())
	must.NoError(t, err)
	real, err := filepath.EvalSymlinks(testsupport.Python)
	must.NoError(t, err)
	at := slices.IndexFunc(found.Interpreters, func(i Interpreter) bool { return i.Real == real })
	must.GreaterEq(t, 0, at, must.Sprintf("%+v", found))
	must.SliceContains(t, found.Interpreters[at].Names, testsupport.Python)
}
