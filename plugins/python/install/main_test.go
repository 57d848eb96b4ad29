// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel/wheeltest"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// pythons caches this machine's interpreters that builders can run. Listing them is slow, because uv runs each.
var pythons []install.Python

// system returns the preferred interpreter of pythons.
func system(t testing.TB) install.Python {
	t.Helper()
	if pythons == nil {
		found, err := install.NewFinder(wheeltest.FindUV(t, builder()), nil, builder()).Pythons(t.Context(), "cpython")
		must.NoError(t, err)
		if len(found) == 0 {
			t.Skip("found no interpreter")
		}
		pythons = found
	}
	return pythons[0]
}

// builder returns a new user for an installer, or nil without root. No two calls return the same ID, even in different
// processes, because process IDs are at most 1<<22. systemd assigns no IDs in this range ("Users, Groups, UIDs and GIDs
// on systemd Systems").
func builder() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	id := uint32(1_900_000_000 + (int(made.Add(1))%500)<<22 + os.Getpid())
	return &syscall.Credential{Uid: id, Gid: id}
}

var made atomic.Int32

func uv(t testing.TB) install.Installer {
	i, err := install.NewFinder(wheeltest.FindUV(t, builder()), nil, builder()).Find(t.Context())
	must.NoError(t, err)
	return i
}

// place has directories of a builder for one environment, and a directory of wheels that all users may read.
type place struct {
	dir, wheels string
	as          *syscall.Credential
}

func newPlace(t testing.TB) place {
	t.Helper()
	top, err := os.MkdirTemp("", "install-test-") // not t.TempDir, whose parent no other user may enter
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, os.RemoveAll(top)) })
	must.NoError(t, os.Chmod(top, 0o755))
	p := place{filepath.Join(top, "build"), filepath.Join(top, "wheels"), builder()}
	must.NoError(t, os.Mkdir(p.wheels, 0o755))
	p.mkdirs(t)
	return p
}

func (p place) mkdirs(t testing.TB) {
	t.Helper()
	for _, dir := range []string{p.dir, p.env(), p.work()} {
		must.NoError(t, os.MkdirAll(dir, 0o755))
		must.NoError(t, os.Chmod(dir, 0o755))
		if p.as != nil {
			must.NoError(t, os.Chown(dir, int(p.as.Uid), int(p.as.Gid)))
		}
	}
}

func (p place) env() string  { return filepath.Join(p.dir, "new") }
func (p place) work() string { return filepath.Join(p.dir, "work") }

// request describes an environment from the place's wheels, without an index.
func (p place) request(t testing.TB, lines ...string) install.Request {
	return install.Request{
		Python:       system(t),
		Requirements: &requirement.Set{Lines: lines},
		Sources:      requirement.Sources{FindLinks: []string{p.wheels}, Offline: true},
		Dir:          p.env(), Work: p.work(),
		As: p.as,
	}
}

func installs(t testing.TB, i install.Installer, r install.Request) (python string) {
	t.Helper()
	must.NoError(t, i.Install(t.Context(), r))
	return filepath.Join(r.Dir, "bin/python")
}

// fails calls Install, which must fail with an *install.Error, and checks whether that error is temporary.
func fails(t testing.TB, i install.Installer, r install.Request, temporary bool) *install.Error {
	t.Helper()
	err := i.Install(t.Context(), r)
	t.Log(err)
	var e *install.Error
	must.True(t, errors.As(err, &e), must.Sprintf("the error is %v", err))
	must.EqOp(t, temporary, e.Temporary, must.Sprint(err))
	return e
}

// hello writes two wheels: hello-world, which has the console script hello, and greeting-words, which hello-world
// requires.
func hello(t testing.TB, dir string) {
	wheeltest.Wheel{Name: "greeting-words", Version: "1.0"}.Write(t, dir)
	wheeltest.Wheel{Name: "hello-world", Version: "2.0", Requires: []string{"greeting-words>=1"}, Files: map[string]string{
		"hello_world.py": "import greeting_words\nVERSION = '2.0'\n" +
			"def main():\n    print('hello', greeting_words.VERSION)\n" +
			"def fail():\n    raise ValueError('no')\n",
		"hello_world-2.0.dist-info/entry_points.txt": "[console_scripts]\nhello = hello_world:main\n",
	}}.Write(t, dir)
}

// small mounts a file system of this size, in bytes, on a directory until the test ends.
func small(t testing.TB, dir string, size int, as *syscall.Credential) {
	t.Helper()
	testsupport.NeedRoot(t) // only root can mount a small file system
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", size)); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		test.NoError(t, syscall.Unmount(dir, 0))
	})
	must.NoError(t, os.Chown(dir, int(as.Uid), int(as.Gid)))
}

func noise(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return string(b)
}

func (p place) nothingRuns(t testing.TB) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(
		wait.BoolFunc(func() bool { return p.as == nil || len(p.processes(t)) == 0 }),
		wait.Timeout(time.Minute), wait.Gap(10*time.Millisecond),
	))
}

// processes returns the /proc directories of the builder's processes.
func (p place) processes(t testing.TB) (found []string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must.NoError(t, err)
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != p.as.Uid {
			continue
		}
		if argv, _ := os.ReadFile(dir + "/cmdline"); len(argv) > 0 {
			found = append(found, dir)
		}
	}
	return found
}

// serve returns the URL of an index with the test's handler.
func serve(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL + "/simple"
}
