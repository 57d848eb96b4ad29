// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package owndir opens directories after it has checked that only root and this process's user can replace them. The
// check covers the whole path, so the caller may use the path by name afterwards: no other user can redirect it.
// RemoveAll removes directories of this user that are not writable.
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

// Make opens the directory dir, an absolute path, and creates missing directories with the given mode. Every directory
// and symbolic link in the path must belong to root, to this process's user, or to a user in the list "also". No other
// user may write to these directories; a directory above dir may be writable for others if it is sticky, as /tmp is.
// The error names the directory at fault and the remedy. The file's name is dir without symbolic links. Close the file
// after use.
func Make(dir string, mode fs.FileMode, also ...int) (f *os.File, err error) {
	// open fails with ErrNotExist if another process removes an empty directory between two of its steps
	for range 10 {
		if f, err = open(dir, &mode, also); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return f, err
}

// Open is like Make, but creates nothing: if a directory is missing, the error is fs.ErrNotExist.
func Open(dir string, also ...int) (*os.File, error) { return open(dir, nil, also) }

// Check returns the error of Open, or nil if a directory is missing.
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

// Nomad returns the uid of the user "nomad", for the list "also" of Make, or nil if that user does not exist.
// HashiCorp's package makes it the owner of the agent's directories. It can be trusted, because it can control the
// agent, which runs as root, in any case.
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

// maxLinks is the number of symbolic links that the kernel follows in one path (path_resolution(7)).
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
		// no other user can replace the checked part of the path, so the next step may pass through it by name
		here, todo = filepath.Join(here, todo[0]), todo[1:]
	}
}

// check checks one directory or symbolic link of a path, and returns the target of a link. last is true for the final
// directory. Other users must not be able to write to that one even if it is sticky, because they could create files in
// it before this process does.
func check(path string, last bool, also []int) (link string, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if info.Mode()&fs.ModeSymlink != 0 { // the kernel ignores a link's mode, so only the owner counts
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

// CheckFile checks the owner and the mode of one file or directory, by the rules of Make.
func CheckFile(path string, info fs.FileInfo, also ...int) error {
	if err := checkOwner(path, info, also); err != nil {
		return err
	}
	others := fs.FileMode(0o022)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 && st.Gid == st.Uid {
		others = 0o002 // no other user is in a user's private group, and its umask is 002 (useradd(8))
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
