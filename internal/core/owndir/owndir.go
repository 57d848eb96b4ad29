// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package owndir opens directories that no other user can replace: only root and this
// process's own user can, from which nothing can be protected anyway.
//
// Only those two can change what was checked, so that a path stays safe to use by its
// name after one check.
package owndir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Make opens dir, an absolute path, and makes missing directories with this mode. Every
// directory from / on, and every symbolic link on the way, must belong to root or to this
// process's user, and be writable for no one else, except that a directory above dir may
// be sticky, as /tmp is. The error names the one that is not, and what to do about it.
// The file's name is dir without symbolic links; the caller closes it.
func Make(dir string, mode fs.FileMode) (*os.File, error) { return open(dir, &mode) }

// Open is Make for a directory that has to exist: the error is fs.ErrNotExist if it
// does not.
func Open(dir string) (*os.File, error) { return open(dir, nil) }

// Check returns the error of Make, and makes nothing: a missing directory is no error.
func Check(dir string) error {
	f, err := Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// maxLinks is how many symbolic links the kernel follows in a path, path_resolution(7).
const maxLinks = 40

func open(dir string, mode *fs.FileMode) (*os.File, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%q is not absolute: write it from /", dir)
	}
	at, err := openPath(unix.AT_FDCWD, "/")
	if err != nil {
		return nil, err
	}
	defer func() { unix.Close(at) }()
	here, todo, links := "/", strings.Split(dir, "/"), 0
	if _, err := check(at, here, false); err != nil {
		return nil, err
	}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join(here, name)
		fd, err := openPath(at, name)
		if errors.Is(err, unix.ENOENT) && mode != nil {
			fd, err = makeDir(at, name, *mode)
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: next, Err: err}
		}
		isLink, err := check(fd, next, false)
		if err == nil && !isLink {
			unix.Close(at)
			at, here = fd, next
			continue
		}
		var target string
		if err == nil {
			target, err = readLink(fd)
		}
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
		if links++; links > maxLinks {
			return nil, &fs.PathError{Op: "open", Path: dir, Err: unix.ELOOP}
		}
		todo = append(strings.Split(target, "/"), todo...)
		if filepath.IsAbs(target) {
			root, err := openPath(unix.AT_FDCWD, "/")
			if err != nil {
				return nil, err
			}
			unix.Close(at)
			at, here = root, "/"
		}
	}
	if _, err := check(at, here, true); err != nil {
		return nil, err
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: here, Err: err}
	}
	return os.NewFile(uintptr(fd), here), nil
}

// check looks at one directory or link. The last one is the directory itself, in which
// even with a sticky bit others could make what this process is about to.
func check(fd int, path string, last bool) (isLink bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return false, fmt.Errorf("%s belongs to user %d, who could replace what is there: chown it, or choose another "+
			"directory", path, st.Uid)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK: // whose mode has no meaning
		return true, nil
	case unix.S_IFDIR:
	default:
		return false, &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	}
	others := uint32(0o022)
	if st.Uid != 0 && st.Gid == st.Uid {
		others = 0o002 // a group that each user has for themselves goes with a umask of 002 (useradd(8))
	}
	if st.Mode&others != 0 && (last || st.Mode&unix.S_ISVTX == 0) {
		return false, fmt.Errorf("others may write to %s, and so could replace what is there: chmod go-w %s, or choose "+
			"another directory", path, path)
	}
	return false, nil
}

// makeDir makes a directory of exactly this mode. If another process was quicker, what it
// made is checked like everything else.
func makeDir(at int, name string, mode fs.FileMode) (int, error) {
	err := unix.Mkdirat(at, name, uint32(mode.Perm()))
	if err == nil {
		err = unix.Fchmodat(at, name, uint32(mode.Perm()), 0) // whatever the umask is
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return openPath(at, name)
}

// openPath opens what is there itself, if it is a link.
func openPath(at int, name string) (int, error) {
	return retry(func() (int, error) {
		return unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

func readLink(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	return string(buf[:max(n, 0)]), os.NewSyscallError("readlinkat", err)
}

// retry is for calls that a signal may interrupt.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}
