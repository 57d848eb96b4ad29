// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package owndir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const stranger = 65534

// place is a temporary directory with helpers that arrange files in it.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) place {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must.NoError(t, err)
	return place{t, dir}
}

func (p place) path(name string) string { return filepath.Join(p.dir, name) }

func (p place) mkdir(name string, mode fs.FileMode) {
	p.t.Helper()
	must.NoError(p.t, os.MkdirAll(p.path(name), 0o755))
	must.NoError(p.t, os.Chmod(p.path(name), mode))
}

func (p place) link(target, name string) {
	p.t.Helper()
	must.NoError(p.t, os.Symlink(target, p.path(name)))
}

func (p place) give(name string) {
	p.t.Helper()
	must.NoError(p.t, os.Lchown(p.path(name), stranger, stranger))
}

const sticky = fs.ModeSticky | 0o777

// A refused directory is neither opened nor made, and the error names the path to change.
func TestMake_RefusesADirectoryThatOtherUsersCanReplace(t *testing.T) {
	for name, row := range map[string]struct {
		arrange func(place)
		dir     string
		blamed  string
		want    string
		root    bool // arrange changes owners, which needs root
	}{
		"a stranger's directory": {func(p place) { p.mkdir("a", 0o755); p.give("a") }, "a", "a",
			"% belongs to user 65534, ", true},
		"below a stranger's directory": {func(p place) { p.mkdir("a/b", 0o700); p.give("a") }, "a/b", "a",
			"% belongs to user 65534, ", true},
		"missing, below a stranger's directory": {func(p place) { p.mkdir("a", 0o755); p.give("a") }, "a/b/c", "a",
			"% belongs to user 65534, ", true},
		"a stranger's directory in tmp": {func(p place) { p.mkdir("tmp", sticky); p.mkdir("tmp/a", 0o755); p.give("tmp/a") },
			"tmp/a/b", "tmp/a", "% belongs to user 65534, ", true},
		"a stranger's sticky directory": {func(p place) { p.mkdir("tmp", sticky); p.mkdir("tmp/a", 0o755); p.give("tmp") },
			"tmp/a", "tmp", "% belongs to user 65534, ", true},
		"through a stranger's link": {func(p place) {
			p.mkdir("tmp", sticky)
			p.mkdir("a", 0o755)
			p.link(p.path("a"), "tmp/l")
			p.give("tmp/l")
		}, "tmp/l", "tmp/l", "% belongs to user 65534, ", true},
		"through two links, the second one a stranger's": {func(p place) {
			p.mkdir("a", 0o755)
			p.link("a", "m")
			p.give("m")
			p.link("m", "l")
		}, "l/b", "m", "% belongs to user 65534, ", true},
		"a link into a stranger's directory": {func(p place) {
			p.mkdir("a/b", 0o755)
			p.give("a")
			p.link(p.path("a/b"), "l")
		}, "l", "a", "% belongs to user 65534, ", true},
		"a link out of a stranger's directory": {func(p place) {
			p.mkdir("a/b", 0o755)
			p.mkdir("c", 0o755)
			p.give("a")
			p.link("a/b/../../c", "l")
		}, "l", "a", "% belongs to user 65534, ", true},
		"writable by all users": {func(p place) { p.mkdir("a", 0o757) }, "a", "a", "other users may write to % and ", false},
		"writable by a group": {func(p place) {
			p.mkdir("a", 0o775)
			must.NoError(p.t, os.Lchown(p.path("a"), -1, stranger))
		}, "a", "a", "other users may write to % and ", true},
		"below a world-writable directory": {func(p place) { p.mkdir("a/b", 0o700); p.mkdir("a", 0o777) }, "a/b", "a",
			"other users may write to % and ", false},
		"a sticky directory": {func(p place) { p.mkdir("a", sticky) }, "a", "a", "other users may write to % and ", false},
		"missing, below a world-writable directory": {func(p place) { p.mkdir("a", 0o777) }, "a/b", "a",
			"other users may write to % and ",
			false},
		"a file": {func(p place) { must.NoError(p.t, os.WriteFile(p.path("a"), nil, 0o600)) }, "a", "a",
			"%: not a directory", false},
		"a link to itself": {func(p place) { p.link("a", "a") }, "a", "a", "%: too many levels", false},
	} {
		t.Run(name, func(t *testing.T) {
			if row.root && os.Geteuid() != 0 {
				t.Skip("needs root to give directories to another user")
			}
			p := newPlace(t)
			row.arrange(p)
			before := tree(t, p.dir)
			f, err := Make(p.path(row.dir), 0o700)
			if err == nil {
				f.Close()
				t.Fatal("opened")
			}
			want := strings.Replace(row.want, "%", p.path(row.blamed), 1)
			for call, err := range map[string]error{"Make": err, "Check": Check(p.path(row.dir))} {
				test.ErrorContains(t, err, want, test.Sprintf("%s: error %v", call, err))
			}
			test.Eq(t, before, tree(t, p.dir), test.Sprint("files after the refusal"))
		})
	}
}

func TestMake_MakesAPrivateDirectory(t *testing.T) {
	for name, row := range map[string]struct {
		arrange  func(place)
		dir, got string
	}{
		"missing":                       {func(place) {}, "a/b", "a/b"},
		"existing":                      {func(p place) { p.mkdir("a", 0o750) }, "a", "a"},
		"missing in a sticky directory": {func(p place) { p.mkdir("tmp", sticky) }, "tmp/a/b", "tmp/a/b"},
		"through a link":                {func(p place) { p.mkdir("a", 0o755); p.link("a", "l") }, "l/b", "a/b"},
		"through an absolute link": {func(p place) {
			p.mkdir("a", 0o755)
			p.mkdir("c", 0o755)
			p.link(p.path("a"), "c/l")
		}, "c/l/b", "a/b"},
		"through a link up": {func(p place) {
			p.mkdir("a/b", 0o755)
			p.mkdir("c", 0o755)
			p.link("../c", "a/l")
		}, "a/l/./d", "c/d"},
		"a link at the end":                     {func(p place) { p.mkdir("a", 0o755); p.link("a/", "l") }, "l", "a"},
		"a directory that other users can read": {func(p place) { p.mkdir("a", 0o755) }, "a", "a"},
		// only maxLinks/2 links: the kernel may count each link twice, since it may restart the walk of a path
		"through many links": {func(p place) {
			p.mkdir("a", 0o755)
			p.link("a", "l1")
			for i := range maxLinks/2 - 1 {
				p.link(fmt.Sprint("l", i+1), fmt.Sprint("l", i+2))
			}
		}, fmt.Sprint("l", maxLinks/2), "a"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			row.arrange(p)
			must.NoError(t, Check(p.path(row.dir)))
			_, err := os.Stat(p.path(row.dir))
			there := err == nil
			if f, err := Open(p.path(row.dir)); errors.Is(err, fs.ErrNotExist) == there {
				t.Errorf("open of a directory that exists (%v): %v", there, err)
			} else if err == nil {
				f.Close()
			}
			old := unix.Umask(0o277)
			f, err := Make(p.path(row.dir), 0o700)
			unix.Umask(old)
			must.NoError(t, err)
			defer f.Close()
			test.Eq(t, p.path(row.got), f.Name(), test.Sprint("name"))
			opened, err := f.Stat()
			must.NoError(t, err)
			named, err := os.Stat(p.path(row.dir))
			must.NoError(t, err)
			test.True(t, os.SameFile(opened, named), test.Sprint("another directory was opened"))
			if !there && opened.Mode() != fs.ModeDir|0o700 {
				t.Errorf("its mode is %v", opened.Mode())
			}
			must.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
		})
	}
}

// A directory that its owner's private group can write to is accepted: a umask of 002 creates such directories.
func TestMake_AcceptsAUsersOwnDirectory(t *testing.T) {
	testsupport.NeedRoot(t) // to become other users
	p := newPlace(t)
	for dir := p.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		must.NoError(t, os.Chmod(dir, 0o755))
	}
	p.mkdir("home", 0o775)
	p.give("home")
	p.mkdir("group", 0o775)
	must.NoError(t, os.Lchown(p.path("group"), stranger, stranger-1))
	p.mkdir("tmp", sticky)
	for _, row := range []struct {
		uid         int
		can, cannot []string
	}{
		{stranger, []string{"home/a/b", "home", "tmp/a"}, []string{"group", "group/a", "tmp"}},
		{stranger - 1, nil, []string{"home", "home/a", "tmp/a", "tmp/a/b", "group"}},
	} {
		testsupport.AsUser(t, row.uid, func() error {
			for _, dir := range row.can {
				if f, err := Make(p.path(dir), 0o700); err != nil {
					t.Errorf("user %d, %s: %v", row.uid, dir, err)
				} else {
					f.Close()
				}
			}
			for _, dir := range row.cannot {
				if f, err := Make(p.path(dir), 0o700); err == nil {
					f.Close()
					t.Errorf("user %d: %s was opened", row.uid, dir)
				}
			}
			return nil
		})
	}
}

// A supervisor that exits removes its empty directories, perhaps while another supervisor creates them with Make.
func TestMake_SurvivesConcurrentRemoval(t *testing.T) {
	p := newPlace(t)
	for range 300 {
		p.mkdir("a/b/c", 0o700)
		removed := make(chan struct{})
		go func() {
			defer close(removed)
			for _, dir := range []string{"a/b/c", "a/b", "a"} {
				_ = os.Remove(p.path(dir)) // fails if Make has made a subdirectory in the meantime
			}
		}()
		f, err := Make(p.path("a/b/c"), 0o700)
		<-removed
		must.NoError(t, err)
		f.Close()
	}
}

func TestMake_RefusesARelativePath(t *testing.T) {
	_, err := Make("a", 0o700)
	test.ErrorContains(t, err, "not absolute", test.Sprint("error"))
}

// tree lists a directory tree with modes, in one line.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	must.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		all = append(all, path+" "+info.Mode().String())
		return err
	}))
	return strings.Join(all, ", ")
}
