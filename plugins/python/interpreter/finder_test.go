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
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestFinder_OrdersTheBestFirst(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"a/bin/python3.9":   says("3.9.1", nil),
		"b/bin/python3.12":  says("3.12.10", nil),
		"c/bin/python3.12":  says("3.12.9", nil),
		"d/bin/python3.15":  says("3.15.0rc1", nil),
		"e/bin/python3.14t": says("3.14.0", map[string]any{"free_threaded": true}),
		"f/bin/pypy3.13":    says("3.13.1", map[string]any{"implementation": "pypy"}),
		"g/bin/python3.12":  says("3.12.10", nil),
	} {
		fake(t, filepath.Join(dir, name), script)
	}
	f := &Finder{Globs: []string{dir + "/*/bin/python3*", dir + "/*/bin/pypy3*"}}
	const want = "b/bin/python3.12=3.12.10 g/bin/python3.12=3.12.10 c/bin/python3.12=3.12.9 a/bin/python3.9=3.9.1 " +
		"d/bin/python3.15=3.15.0rc1 " +
		"e/bin/python3.14t=3.14.0 (free-threaded) f/bin/pypy3.13=3.13.1 (pypy)"
	test.Eq(t, want, paths(dir, find(t, f)))
	test.SliceEmpty(t, search(t, f).Rejected, test.Sprint("rejected"))
}

func TestFinder_RunsOnlyFilesNamedAsInterpreters(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"python3-config", "python3.11-config", "python3.11-gdb.py", "pypy3compile",
		"python3.11.bak", "corp-python", "python3dm"} {
		fake(t, filepath.Join(dir, name), "touch "+dir+"/ran; "+says("3.11.2", nil))
	}
	f := &Finder{Globs: []string{dir + "/*"}}
	test.SliceEmpty(t, find(t, f), test.Sprint("found"))
	_, err := os.Stat(dir + "/ran")
	test.Error(t, err, test.Sprint("one was run"))
	f = &Finder{Globs: []string{dir + "/corp-python"}}
	test.Eq(t, "corp-python=3.11.2", paths(dir, find(t, f)), test.Sprint("found"))
}

func TestFinder_MergesNamesOfOneFile(t *testing.T) {
	dir := t.TempDir()
	fake(t, dir+"/bin/python3.11", says("3.11.2", nil))
	for link, to := range map[string]string{"bin/python3": "python3.11", "bin/python": "python3",
		"local/python3": "../bin/python3"} {
		must.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o755))
		must.NoError(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	must.NoError(t, os.Link(dir+"/bin/python3.11", dir+"/local/python3.11"))
	f := &Finder{Globs: []string{dir + "/local/*", dir + "/bin/*"}}
	found := find(t, f)
	must.SliceLen(t, 1, found, must.Sprint("found"))
	i := found[0]
	must.Eq(t, i.Real, i.Path, must.Sprintf("%s is %s, of", i.Path, i.Real))
	must.Eq(t, "python3.11", filepath.Base(i.Path), must.Sprintf("%s is %s, of", i.Path, i.Real))
	test.SliceLen(t, 5, i.Names, test.Sprintf("%s is %s, of", i.Path, i.Real))
	// once for each of the files and directories: local/python3, local/python3.11 and bin/python3.11
	test.Eq(t, 3, f.asked, test.Sprintf("it was run %d times", f.asked))
	find(t, f)
	test.Eq(t, 3, f.asked, test.Sprint("it was run again though nothing has changed"))
}

func TestFinder_SeparatesInstallationsOfOneFile(t *testing.T) {
	dir := t.TempDir() // as uv does, whose files are hard links
	prefix := `"'$(dirname $(dirname $0))'"`
	script := strings.ReplaceAll(says("3.12.1", nil), `"/opt/fake"`, prefix)
	fake(t, dir+"/a/bin/python3.12", script)
	must.NoError(t, os.MkdirAll(dir+"/b/bin", 0o755))
	must.NoError(t, os.Link(dir+"/a/bin/python3.12", dir+"/b/bin/python3.12"))
	found := find(t, &Finder{Globs: []string{dir + "/*/bin/*"}})
	must.SliceLen(t, 2, found, must.Sprint("found"))
	must.Eq(t, dir+"/a", found[0].Prefix, must.Sprint("found"))
	must.Eq(t, dir+"/b", found[1].Prefix, must.Sprint("found"))
	test.Eq(t, dir+"/b/bin/python3.12", found[1].Path, test.Sprint("found"))
}

func TestFinder_AsksAReplacedFileAgain(t *testing.T) {
	dir := t.TempDir()
	fake(t, dir+"/python3.11", says("3.11.2", nil))
	fake(t, dir+"/python3.12", says("3.12.1", nil))
	f := &Finder{Globs: []string{dir + "/*"}}
	find(t, f)
	fake(t, dir+"/python3.11", says("3.11.9", nil))
	found := find(t, f)
	got := paths(dir, found)
	must.Eq(t, "python3.12=3.12.1 python3.11=3.11.9", got, must.Sprintf("found %s, %d were asked", got, f.asked))
	test.Eq(t, 3, f.asked, test.Sprintf("found %s, %d were asked", got, f.asked))
	old := found[1].File
	must.NoError(t, os.Chtimes(dir+"/python3.11", time.Time{}, time.Unix(1e9, 0)))
	if found = find(t, f); found[1].File == old || f.asked != 4 {
		t.Errorf("another time is no other file: %+v, %d were asked", found[1].File, f.asked)
	}
	must.NoError(t, os.Remove(dir+"/python3.11"))
	got = paths(dir, find(t, f))
	must.Eq(t, "python3.12=3.12.1", got, must.Sprintf("found %s, %d are known", got, len(f.known)))
	test.MapLen(t, 1, f.known, test.Sprintf("found %s, %d are known", got, len(f.known)))
}

func TestFinder_NoticesEachChangeOfAFile(t *testing.T) {
	for name, change := range map[string]func(path string, before os.FileInfo) error{
		"by its inode": func(path string, before os.FileInfo) error {
			content, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path+".new", content, 0o755), os.Chtimes(path+".new", before.ModTime(),
				before.ModTime()), os.Rename(path+".new", path))
		},
		"by its size": func(path string, before os.FileInfo) error {
			return errors.Join(os.WriteFile(path, []byte("#!/bin/sh\n"+says("3.11.10", nil)+"\n"), 0o755), os.Chtimes(path,
				before.ModTime(), before.ModTime()))
		},
		"by its time": func(path string, before os.FileInfo) error {
			later := before.ModTime().Add(time.Second)
			return os.Chtimes(path, later, later)
		},
	} {
		for _, shim := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shim %v", name, shim), func(t *testing.T) {
				dir := t.TempDir()
				real := dir + "/real/python3.11"
				fake(t, real, says("3.11.2", map[string]any{"executable": real}))
				f := &Finder{Globs: []string{real}}
				if shim {
					fake(t, dir+"/shims/python3", "exec "+real+` "$@"`)
					f.Globs = []string{dir + "/shims/*"}
				}
				before, err := os.Stat(real)
				must.NoError(t, err)
				old := find(t, f)
				if find(t, f); f.asked != 1 {
					t.Errorf("%d were asked though nothing has changed", f.asked)
				}
				must.NoError(t, change(real, before))
				found := find(t, f)
				must.Eq(t, 2, f.asked, must.Sprintf("%d were asked, found", f.asked))
				must.SliceLen(t, 1, found, must.Sprintf("%d were asked, found", f.asked))
				must.SliceLen(t, 1, old, must.Sprintf("%d were asked, found", f.asked))
				test.NotEqOp(t, old[0].File, found[0].File, test.Sprintf("%d were asked, found", f.asked))
			})
		}
	}
}

func TestFinder_ResolvesShims(t *testing.T) {
	dir := t.TempDir()
	real := dir + "/versions/3.12.1/bin/python3.12"
	fake(t, real, says("3.12.1", map[string]any{"executable": real}))
	fake(t, dir+"/shims/python3.12", "exec "+real+` "$@"`)
	f := &Finder{Globs: []string{dir + "/shims/*", dir + "/versions/*/bin/*"}}
	found := find(t, f)
	must.SliceLen(t, 1, found, must.Sprint("found"))
	must.Eq(t, real, found[0].Path, must.Sprint("found"))
	must.Eq(t, real, found[0].Real, must.Sprint("found"))
	test.SliceContainsOp(t, found[0].Names, dir+"/shims/python3.12", test.Sprint("found"))
	// the shim has not changed, what it runs has
	f = &Finder{Globs: []string{dir + "/shims/*"}}
	find(t, f)
	fake(t, real, says("3.12.2", map[string]any{"executable": real}))
	test.Eq(t, "versions/3.12.1/bin/python3.12=3.12.2", paths(dir, find(t, f)), test.Sprint("found"))
}

func TestFinder_RejectsWithAReason(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"a/python3":    says("3.7.16", nil),
		"b/python3":    `echo "Unknown option: -I" >&2; exit 2`,
		"c/python3":    "echo hello; echo world",
		"d/python3":    "true",
		"e/python3":    "echo first >&2; echo 'no libpython3.so' >&2; exit 127",
		"f/python3":    "ulimit -c 0; ulimit -v 1; exec true", // the kernel kills it: there is no room for the program
		"g/python3":    says("3.11.2", map[string]any{"prefix": "/srv/venv"}),
		"h/python3":    "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
		"i/python3":    says("3.11.2", map[string]any{"executable": dir + "/gone"}),
		"j/python3":    says("3.11.2", map[string]any{"executable": "python3"}),
		"k/python3":    says("3.11.2;rm", nil),
		"l/python":     says("2.7.18", nil),
		"m/python3.11": "echo a line of a sitecustomize; " + says("3.11.2", nil),
	} {
		fake(t, filepath.Join(dir, name), script)
	}
	must.NoError(t, os.MkdirAll(dir+"/n/python3", 0o755))
	must.NoError(t, os.MkdirAll(dir+"/o", 0o755))
	must.NoError(t, os.Symlink("gone", dir+"/o/python3"))
	fake(t, dir+"/p/python3", says("3.11.2", nil))
	must.NoError(t, os.Chmod(dir+"/p/python3", 0o644))
	f := &Finder{Globs: []string{dir + "/*/*"}}
	test.Eq(t, "m/python3.11=3.11.2", paths(dir, find(t, f)), test.Sprint("found"))
	r := search(t, f).Rejected
	for at, words := range map[string]string{
		"a/": "is Python 3.7.16, older than 3.8", "b/": "is older than Python 3.8",
		"c/": `is no Python: it answered "world"`, "d/": "is no Python",
		"e/": "exit status 127: no libpython3.so", "f/": "signal: ", "g/": "is of a virtual environment",
		"h/": "it said too much", "i/": "gone, the interpreter that it runs: ",
		"j/": "is no Python", "k/": "is no Python", "l/": "is Python 2.7.18, not 3",
		"n/": "not a regular file", "o/": "no such file", "p/": "permission denied",
	} {
		mentions(t, r, filepath.Join(dir, at)+"/", words)
	}
	test.SliceLen(t, 15, r, test.Sprintf("%d are rejected", len(r)))
}

func TestFinder_KillsAHangingInterpreter(t *testing.T) {
	dir := t.TempDir()
	mark := testsupport.Mark()
	fake(t, dir+"/a/python3", "sleep "+mark+" & sleep "+mark)
	// ends, but what it started lives and has its output open
	fake(t, dir+"/b/python3", "sleep "+mark+" & "+says("3.11.2", nil))
	f := &Finder{Globs: []string{dir + "/a/*"}, timeout: time.Second}
	for range 6 { // a slow machine needs more time to start them, which they get
		over, most := make(chan struct{}), make(chan int)
		go func() { most <- mostAsleep(mark, over) }()
		test.Eq(t, "", paths(dir, renew(t, f)), test.Sprint("found"))
		close(over)
		mentions(t, search(t, f).Rejected, "did not answer within ")
		if <-most == 2 {
			break
		}
	}
	testsupport.WaitSleepers(t, mark, 0)
	f = &Finder{Globs: []string{dir + "/b/*"}, timeout: patience}
	if got := paths(dir, find(t, f)); got != "b/python3=3.11.2" {
		t.Errorf("found %s: %q", got, search(t, f).Rejected)
	}
	testsupport.WaitSleepers(t, mark, 0)
}

// On a node that boots or is overloaded, interpreters answer late.
func TestFinder_GivesALateInterpreterMoreTime(t *testing.T) {
	dir := t.TempDir()
	fake(t, dir+"/a/python3", "sleep 1; "+says("3.11.2", nil))
	f := &Finder{Globs: []string{dir + "/*/*"}, timeout: 300 * time.Millisecond}
	for round, late := range []string{"300ms", "600ms"} {
		got := paths(dir, renew(t, f))
		test.Eq(t, "", got, test.Sprintf("found %s in round %d", got, round))
		mentions(t, search(t, f).Rejected, "did not answer within "+late)
		late := search(t, f).Late
		must.SliceLen(t, 1, late, must.Sprint("late are"))
		test.Eq(t, dir+"/a/python3", late[0], test.Sprint("late are"))
		got = paths(dir, find(t, f))
		must.Eq(t, "", got,
			must.Sprintf("a task's start found %s in round %d, %d were asked", got, round, f.asked))
		test.Eq(t, round+1, f.asked,
			test.Sprintf("a task's start found %s in round %d, %d were asked", got, round, f.asked))
	}
	f.timeout = patience // so that a slow machine does not matter
	got := paths(dir, renew(t, f))
	must.Eq(t, "a/python3=3.11.2", got, must.Sprintf("found %s, late are", got))
	test.SliceEmpty(t, search(t, f).Late, test.Sprintf("found %s, late are", got))
	renew(t, f)
	test.Eq(t, 3, f.asked, test.Sprintf("%d were asked", f.asked))
}

// mostAsleep is the largest number of them that was seen.
func mostAsleep(mark string, over <-chan struct{}) (most int) {
	for {
		most = max(most, len(testsupport.Sleepers(mark)))
		select {
		case <-over:
			return most
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestFinder_RetriesAFailedInterpreter(t *testing.T) {
	dir := t.TempDir()
	fake(t, dir+"/a/python3", "test -e "+dir+"/ready || exit 1; "+says("3.11.2", nil))
	fake(t, dir+"/b/python3", says("3.12.1", nil))
	fake(t, dir+"/c/python3", says("3.13.1", nil))
	f := &Finder{Globs: []string{dir + "/*/python3"}}
	find(t, f)
	must.NoError(t, os.WriteFile(dir+"/ready", nil, 0o644))
	got := paths(dir, find(t, f))
	must.Eq(t, "c/python3=3.13.1 b/python3=3.12.1", got, must.Sprintf("found %s, %d were asked", got, f.asked))
	test.Eq(t, 3, f.asked, test.Sprintf("found %s, %d were asked", got, f.asked))
	f.retry = 1 // a while is over
	got = paths(dir, find(t, f))
	must.Eq(t, "c/python3=3.13.1 b/python3=3.12.1", got,
		must.Sprintf("a task's start found %s, %d were asked", got, f.asked))
	test.Eq(t, 3, f.asked, test.Sprintf("a task's start found %s, %d were asked", got, f.asked))
	got = paths(dir, renew(t, f))
	must.Eq(t, "c/python3=3.13.1 b/python3=3.12.1 a/python3=3.11.2", got,
		must.Sprintf("found %s, %d were asked", got, f.asked))
	test.Eq(t, 4, f.asked, test.Sprintf("found %s, %d were asked", got, f.asked))
}

func TestFinder_EndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	mark := testsupport.Mark()
	fake(t, dir+"/python3", "test -e "+dir+"/ready || exec sleep "+mark+"; "+says("3.11.2", nil))
	f := &Finder{Globs: []string{dir + "/*"}}
	ctx, cancel := context.WithCancel(t.Context())
	var over sync.WaitGroup
	over.Go(func() {
		defer cancel()
		for end := time.Now().Add(patience); len(testsupport.Sleepers(mark)) == 0 && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
	})
	_, err := f.Find(ctx)
	over.Wait()
	test.ErrorIs(t, err, context.Canceled)
	testsupport.WaitSleepers(t, mark, 0)
	must.NoError(t, os.WriteFile(dir+"/ready", nil, 0o644))
	test.Eq(t, "python3=3.11.2", paths(dir, find(t, f)), test.Sprint("found"))
}

func TestFinder_RunsInterpretersAsItsUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can run programs as another user")
	}
	open, err := os.MkdirTemp("", "interpreters") // t.TempDir is not open to other users
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(open) })
	must.NoError(t, os.Chmod(open, 0o755))
	fake(t, open+"/a/python3", `test "$(id -u) $(id -g) $(id -G) $PWD" = "65534 65534 65534 /" || exit 9; test -z `+
		`"$PYTHONPATH$HOME" || exit 8; `+says("3.11.2", nil))
	fake(t, open+"/b/python3", says("3.12.1", nil))
	must.NoError(t, os.Chmod(open+"/b", 0o700))
	t.Setenv("PYTHONPATH", "/x")
	f := &Finder{Globs: []string{open + "/*/*"}, As: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if got := paths(open, find(t, f)); got != "a/python3=3.11.2" {
		t.Errorf("found %s: %q", got, search(t, f).Rejected)
	}
	mentions(t, search(t, f).Rejected, open+"/b/python3 can't be run by user 65534: permission denied")
}

func TestFinder_LimitsConcurrency(t *testing.T) {
	dir := t.TempDir()
	_, digits, _ := strings.Cut(testsupport.Mark(), ".")
	mark := "0.0" + digits
	for n := range 200 {
		fake(t, fmt.Sprintf("%s/%d/python3", dir, n), "sleep "+mark+"; "+says(fmt.Sprintf("3.11.%d", n), nil))
	}
	over, most := make(chan struct{}), make(chan int)
	go func() { most <- mostAsleep(mark, over) }()
	f := &Finder{Globs: []string{dir + "/*/python3"}}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			found, err := f.Find(t.Context())
			must.NoError(t, err, must.Sprint("found"))
			must.SliceLen(t, 200, found.Interpreters, must.Sprint("found"))
			test.Eq(t, "3.11.199", found.Interpreters[0].Version, test.Sprint("found"))
		})
	}
	wait.Wait()
	test.Eq(t, 200, f.asked, test.Sprintf("%d were asked", f.asked))
	close(over)
	n := <-most
	test.False(t, n > 4, test.Sprintf("%d ran at once", n))
}

func TestFinder_RefusesBadGlobs(t *testing.T) {
	for _, glob := range []string{"/opt/[", "python3", "../python3*"} {
		_, err := (&Finder{Globs: []string{glob}}).Find(t.Context())
		test.ErrorContains(t, err, fmt.Sprintf("%q", glob), test.Sprint(glob))
	}
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

func TestFinder_DoesNotWaitWhereInterpretersAreKnown(t *testing.T) {
	dir := t.TempDir()
	mark := testsupport.Mark()
	hangs := "test -e " + dir + "/hang || exit 1; exec sleep " + mark
	fake(t, dir+"/a/python3", hangs)
	fake(t, dir+"/b/python3", says("3.12.1", nil))
	f := &Finder{Globs: []string{dir + "/*/python3"}}
	find(t, f)
	must.NoError(t, os.WriteFile(dir+"/hang", nil, 0o644))
	f.retry = 1 // the one that failed is asked again, and hangs
	asking, end := context.WithCancel(t.Context())
	var over sync.WaitGroup
	over.Go(func() {
		_, err := f.Renew(asking)
		test.ErrorIs(t, err, context.Canceled, test.Sprint("the one that asks"))
	})
	defer over.Wait()
	defer end()
	for len(testsupport.Sleepers(mark)) == 0 {
		time.Sleep(time.Millisecond)
	}
	test.Eq(t, "b/python3=3.12.1", paths(dir, renew(t, f)), test.Sprint("found"))
	fake(t, dir+"/c/python3", says("3.13.1", nil))
	end()
	over.Wait()
	must.NoError(t, os.Remove(dir+"/hang"))
	test.Eq(t, "c/python3=3.13.1 b/python3=3.12.1", paths(dir, find(t, f)), test.Sprint("then it found"))
}
