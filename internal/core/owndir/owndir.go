// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package owndir opens directories that only root and this process's own user can replace.
// No other user can change a checked path, so the path can be used by its name after one check.
// The package also removes directories of this user that are not writable.
package owndir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Make opens dir, an absolute path, and makes missing directories with this mode. Each
// directory from / on, and each symbolic link in the path, must belong to root or to this
// process's user. No other user may write to these directories, except that a directory
// above dir may be sticky, as /tmp is. The error names the directory at fault and what to do
// about it. The file's name is dir without symbolic links; the caller closes the file. Users in
// the list "also" are trusted like root.
func Make(dir string, mode fs.FileMode, also ...int) (f *os.File, err error) {
	// another process may remove an empty directory between two steps
	for range 10 {
		if f, err = open(dir, &mode, also); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return f, err
}

// Open is Make for an existing directory: if it is missing, the error is fs.ErrNotExist.
func Open(dir string, also ...int) (*os.File, error) { return open(dir, nil, also) }

// Check returns the error of Make without making anything. A missing directory is not an error.
func Check(dir string, also ...int) error {
	f, err := Open(dir, also...)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// Nomad returns the user "nomad", if it exists: HashiCorp's package makes it the owner of the
// agent's directories. It can be trusted, since it controls root's agent in any case.
func Nomad() []int {
	nomad, err := user.Lookup("nomad")
	if err != nil {
		return nil
	}
	uid, err := strconv.Atoi(nomad.Uid)
	if err != nil {
		return nil
	}
	return []int{uid}
}

// maxLinks is the number of symbolic links that the kernel follows in a path, path_resolution(7).
const maxLinks = 40

func open(dir string, mode *fs.FileMode, also []int) (*os.File, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%q is not absolute: begin it with /", dir)
	}
	here, todo, links := "/", strings.Split(dir, "/"), 0
	for {
		link, err := check(here, len(todo) == 0, also)
		if errors.Is(err, fs.ErrNotExist) && mode != nil {
			if err = makeDir(here, *mode); err == nil {
				link, err = check(here, len(todo) == 0, also)
			}
		}
		if err != nil {
			return nil, err
		}
		if link != "" {
			if links++; links > maxLinks {
				return nil, &fs.PathError{Op: "open", Path: dir, Err: unix.ELOOP}
			}
			todo = append(strings.Split(link, "/"), todo...)
			here = filepath.Dir(here)
			if filepath.IsAbs(link) {
				here = "/"
			}
		}
		if len(todo) == 0 {
			return os.OpenFile(here, unix.O_DIRECTORY, 0)
		}
		// no other user can replace a checked path, so the next step may use its name
		here, todo = filepath.Join(here, todo[0]), todo[1:]
	}
}

// check checks one directory or symbolic link, and returns the target of a link. last is set for the
// directory that the path leads to. Others must not be able to write to that directory, even if it is
// sticky: they could create files in it before this process does.
func check(path string, last bool, also []int) (link string, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if info.Mode()&fs.ModeSymlink != 0 { // a link's mode has no meaning
		if err := checkOwner(path, info, also); err != nil {
			return "", err
		}
		return os.Readlink(path)
	}
	if !info.IsDir() {
		return "", &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	}
	if !last && info.Mode()&fs.ModeSticky != 0 {
		return "", checkOwner(path, info, also)
	}
	return "", CheckFile(path, info, also...)
}

// CheckFile is Make's check of one file or directory.
func CheckFile(path string, info fs.FileInfo, also ...int) error {
	if err := checkOwner(path, info, also); err != nil {
		return err
	}
	others := fs.FileMode(0o022)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 && st.Gid == st.Uid {
		others = 0o002 // a user private group, which comes with a umask of 002 (useradd(8))
	}
	if info.Mode()&others != 0 {
		return fmt.Errorf("other users may write to %s and could replace its contents: chmod go-w %s, or choose "+
			"another directory", path, path)
	}
	return nil
}

func checkOwner(path string, info fs.FileInfo, also []int) error {
	uid := int(info.Sys().(*syscall.Stat_t).Uid)
	if uid == 0 || uid == os.Geteuid() || slices.Contains(also, uid) {
		return nil
	}
	return fmt.Errorf("%s belongs to user %d, who could replace its contents: chown it, or choose another directory",
		path, uid)
}

// makeDir makes a directory with exactly this mode. A directory that another process has made first
// is not an error; the caller checks it like any other.
func makeDir(path string, mode fs.FileMode) error {
	err := os.Mkdir(path, mode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(path, mode) // regardless of the umask
}
