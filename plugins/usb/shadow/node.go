// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shadow

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// make makes the node at path. If the node exists already, make only sets its owner and mode.
func (n Node) make(path string) error {
	if n.Held != nil {
		return n.standIn(path)
	}
	if n.Major == 0 || n.Major > maxMajor || n.Minor > maxMinor { // the kernel would truncate it silently
		return fmt.Errorf("%s has the invalid device number %d:%d", n.Source, n.Major, n.Minor)
	}
	source, err := os.Lstat(n.Source)
	switch {
	case err == nil && source.Mode()&fs.ModeDevice == 0:
		return fmt.Errorf("%s is not a device node: remove it", n.Source)
	// a missing source is not an error: a container's /dev may lack the node, and sysfs has the number
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	uid, gid := n.UID, n.GID
	if source != nil {
		stat := source.Sys().(*syscall.Stat_t)
		if uid < 0 {
			uid = int(stat.Uid)
		}
		if gid < 0 {
			gid = int(stat.Gid)
		}
	}
	uid, gid = max(uid, 0), max(gid, 0)

	if n.is(path) {
		return n.own(path, uid, gid)
	}
	if err := mayHoldDevices(filepath.Dir(path)); err != nil {
		return err
	}
	kind := uint32(unix.S_IFCHR)
	if n.Block {
		kind = unix.S_IFBLK
	}
	return replace(path, func(temp string) error {
		if err := unix.Mknod(temp, kind, int(n.number())); err != nil {
			return &fs.PathError{Op: "mknod", Path: path, Err: err}
		}
		return n.own(temp, uid, gid)
	})
}

// maxMajor and maxMinor are the kernel's limits of device numbers (MINORBITS, include/linux/kdev_t.h).
const (
	maxMajor = 1<<12 - 1
	maxMinor = 1<<20 - 1
)

// is reports whether the file at path is a node with the kind and number of n.
func (n Node) is(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeDevice == 0 || n.Block == (info.Mode()&fs.ModeCharDevice != 0) {
		return false
	}
	return info.Sys().(*syscall.Stat_t).Rdev == n.number()
}

// number returns the node's dev_t. Minors can exceed a byte: the minors of the fourth bus begin at 384.
func (n Node) number() uint64 { return unix.Mkdev(n.Major, n.Minor) }

// own sets owner and mode of the file at path. It does not follow a link there.
func (n Node) own(path string, uid, gid int) error {
	fd, err := openPath(path)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return n.ownOpen(fd, path, uid, gid)
}

// ownOpen sets owner and mode of an open file, unless they are right already. The id -1 keeps the owner or group. path
// is used only in errors.
func (n Node) ownOpen(fd int, path string, uid, gid int) error {
	var have unix.Stat_t
	if err := unix.Fstat(fd, &have); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if uid >= 0 && uint32(uid) != have.Uid || gid >= 0 && uint32(gid) != have.Gid {
		if err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
			return &fs.PathError{Op: "chown", Path: path, Err: err}
		}
	}
	if mode := uint32(n.Mode.Perm()); mode != have.Mode&0o777 {
		// fchmod(2) refuses an O_PATH descriptor; this path leads to the open file itself
		if err := unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode); err != nil {
			return &fs.PathError{Op: "chmod", Path: path, Err: err}
		}
	}
	return nil
}

// openPath opens the file at path with O_PATH, which does not open the device itself. It does not follow a link.
func openPath(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// link makes a symlink, unless it exists with the same target.
func link(target, path string) error {
	if have, err := os.Readlink(path); err == nil && have == target {
		return nil
	}
	return replace(path, func(temp string) error { return os.Symlink(target, temp) })
}

// replace makes a node or link under a temporary name and renames it to path, so path is never missing or incomplete.
func replace(path string, make func(temp string) error) error {
	temp := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	if err := discard(temp); err != nil {
		return err
	}
	err := make(temp)
	if err == nil {
		err = exchange(temp, path)
	}
	return errors.Join(err, discard(temp)) // temp may be the old node now: discard takes all rights from it, too
}

// exchange renames temp to path, and an existing node or link at path to temp.
func exchange(temp, path string) error {
	info, err := os.Lstat(path)
	if err == nil && info.IsDir() {
		return &fs.PathError{Op: "replace", Path: path, Err: unix.EISDIR}
	}
	err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.ENOENT):
		return os.Rename(temp, path)
	case errors.Is(err, unix.EINVAL): // the file system does not support it
		return errors.Join(discard(path), os.Rename(temp, path))
	}
	return err
}

func mayHoldDevices(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Flags&unix.ST_NODEV != 0 {
		return fmt.Errorf("%s is on a file system that is mounted nodev, where no device node works: use for example "+
			"/dev/nomad-usb", dir)
	}
	return nil
}
