// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// become changes all ids and the supplementary groups to the user's, irrevocably. With root's ids, its capabilities are
// lost. An agent that is not root can't change its ids, so it runs only tasks of its own user and groups.
func become(u *task.User) *Error {
	if u == nil {
		return nil
	}
	own := int(u.UID) == unix.Geteuid() && int(u.GID) == unix.Getegid()
	e := setGroups(u.Groups)
	if e == unix.EPERM && own {
		if !hasGroups(u) {
			return refuse(e, "the agent must run as root to run a task of user "+uid(u)+" with other groups than the agent's")
		}
		e = 0
	}
	if e == 0 {
		gid := uintptr(u.GID)
		_, e = call(unix.SYS_SETRESGID, gid, gid, gid)
	}
	if e == 0 {
		uid := uintptr(u.UID)
		_, e = call(unix.SYS_SETRESUID, uid, uid, uid)
	}
	switch {
	case e == 0:
		return nil
	case e == unix.EPERM && int(u.UID) == unix.Geteuid():
		gid := strconv.FormatUint(uint64(u.GID), 10)
		return refuse(e, "the agent must run as root to run a task with group "+gid)
	case e == unix.EPERM:
		return refuse(e, "the agent must run as root to run a task as user "+uid(u))
	case e == unix.EINVAL:
		return refuse(e, "user "+uid(u)+" or one of its groups does not exist in the agent's user namespace")
	default:
		return failed("become user "+uid(u), e)
	}
}

// hasGroups reports whether the process has the user's groups, and no others.
func hasGroups(u *task.User) bool {
	own, err := unix.Getgroups()
	if err != nil {
		return false
	}
	for _, g := range own {
		if uint32(g) != u.GID && !slices.Contains(u.Groups, uint32(g)) {
			return false
		}
	}
	for _, g := range u.Groups {
		if g != u.GID && !slices.Contains(own, int(g)) {
			return false
		}
	}
	return true
}

func setGroups(groups []uint32) syscall.Errno {
	_, e := call(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))))
	return e
}

// enterDir changes to the working directory, with the user's permissions.
func enterDir(c *task.Command) *Error {
	dir := c.Dir
	if dir == "" {
		dir = "/"
	}
	if dir[0] != '/' {
		return refuse(unix.EINVAL, "work_dir "+quote(dir)+" is not an absolute path")
	}
	_, e := call(unix.SYS_CHDIR, uintptr(cstr(dir)))
	err := &Error{Errno: e}
	switch e {
	case 0:
		return nil
	case unix.ENOENT:
		err.Message = "work_dir " + quote(dir) + " does not exist"
	case unix.ENOTDIR:
		err.Message = "work_dir " + quote(dir) + " is not a directory"
	default:
		err.Message = "work_dir " + quote(dir) + " cannot be entered" + byUser(c.User) + ": " + e.Error()
	}
	return err
}

func uid(u *task.User) string { return strconv.FormatUint(uint64(u.UID), 10) }

func byUser(u *task.User) string {
	if u == nil {
		return ""
	}
	return " by user " + uid(u)
}

func quote(s string) string { return strconv.Quote(s) }
