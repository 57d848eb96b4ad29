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

// make makes the node at path, or leaves it as it is.
func (n Node) make(path string) error {
	source, err := os.Lstat(n.Source)
	switch {
	case err == nil && source.Mode()&fs.ModeDevice == 0:
		if err := link(n.Source, path); err != nil {
			return err
		}
		return n.own(path, n.UID, n.GID, os.Stat, os.Chown)
	case err != nil && !errors.Is(err, fs.ErrNotExist): // a /dev of its own may lack the node: its number is known all the same
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
		return n.own(path, uid, gid, os.Lstat, os.Lchown)
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
		return n.own(temp, uid, gid, os.Lstat, os.Lchown)
	})
}

// is says whether the device's node is there.
func (n Node) is(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeDevice == 0 || n.Block == (info.Mode()&fs.ModeCharDevice != 0) {
		return false
	}
	return uint64(info.Sys().(*syscall.Stat_t).Rdev) == n.number()
}

// number is not that of a byte each: the minors of the fourth bus begin at 384.
func (n Node) number() uint64 { return unix.Mkdev(n.Major, n.Minor) }

// own sets owner and mode where they are others; with -1 they stay.
func (n Node) own(path string, uid, gid int, stat func(string) (fs.FileInfo, error), chown func(string, int, int) error) error {
	info, err := stat(path)
	if err != nil {
		return err
	}
	have := info.Sys().(*syscall.Stat_t)
	if uid >= 0 && uid != int(have.Uid) || gid >= 0 && gid != int(have.Gid) {
		if err := chown(path, uid, gid); err != nil {
			return err
		}
	}
	if info.Mode().Perm() == n.Mode.Perm() {
		return nil
	}
	return os.Chmod(path, n.Mode.Perm()) // a node is no link, and a link is to be followed
}

// link makes a symlink, or leaves it as it is.
func link(target, path string) error {
	if have, err := os.Readlink(path); err == nil && have == target {
		return nil
	}
	return replace(path, func(temp string) error { return os.Symlink(target, temp) })
}

// replace puts what is made under another name first in the place of path, so that
// nobody finds nothing there, or half of it.
func replace(path string, make func(temp string) error) error {
	temp := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	if err := os.RemoveAll(temp); err != nil {
		return err
	}
	err := make(temp)
	if err == nil {
		if err = os.Rename(temp, path); err == nil {
			return nil
		}
	}
	return errors.Join(err, os.RemoveAll(temp))
}

func mayHoldDevices(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Flags&unix.ST_NODEV != 0 {
		return fmt.Errorf("%s is on a file system that is mounted nodev, where no device node works: use another, such as /dev", dir)
	}
	return nil
}
