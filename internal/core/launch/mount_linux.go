// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// System calls for directories and mounts.

func mount(source, target, kind string, flags uintptr, data string) syscall.Errno {
	_, e := call(unix.SYS_MOUNT, uintptr(cstr(source)), uintptr(cstr(target)), uintptr(cstr(kind)), flags,
		uintptr(cstr(data)))
	return e
}

// bind mounts a file or directory at another path. If recursive is unix.MS_REC, it includes the mounts below source.
func bind(source, target string, recursive uintptr) syscall.Errno {
	return mount(source, target, "", unix.MS_BIND|recursive, "")
}

// restrict adds flags (such as unix.MS_RDONLY) to a bind mount. It keeps the flags of the source's mount: without them,
// the call would clear these flags, which a container is not allowed to do.
func restrict(target string, flags uintptr) syscall.Errno {
	its, e := statfs(target)
	if e != 0 {
		return e
	}
	// these flags have the same bits as MS_RDONLY, MS_NOSUID, MS_NODEV and MS_NOEXEC
	const keep = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
	return mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|flags|uintptr(its)&keep, "")
}

// restrictAll is like restrict, but includes all mounts below target (mount_setattr(2), Linux 5.12). The flags
// have the same bits as in mount(2).
func restrictAll(target string, flags uintptr) syscall.Errno {
	attributes := &unix.MountAttr{Attr_set: uint64(flags)}
	dir := unix.AT_FDCWD
	_, e := call(unix.SYS_MOUNT_SETATTR, uintptr(dir), uintptr(cstr(target)), unix.AT_RECURSIVE,
		uintptr(unsafe.Pointer(attributes)), unsafe.Sizeof(*attributes))
	return e
}

func chroot(path string) syscall.Errno {
	_, e := call(unix.SYS_CHROOT, uintptr(cstr(path)))
	return e
}

// entry is what the kernel reports about a file without contacting the server of its file system, which may be dead.
type entry struct {
	kind, mode uint32 // S_IFMT and the permissions of st_mode
	uid, gid   uint32
	dev        uint64
}

func look(fd int) (entry, syscall.Errno) {
	var st unix.Statx_t
	const flags = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	_, e := call(unix.SYS_STATX, uintptr(fd), uintptr(cstr("")), flags, unix.STATX_BASIC_STATS,
		uintptr(unsafe.Pointer(&st)))
	return entry{
		kind: uint32(st.Mode) & unix.S_IFMT, mode: uint32(st.Mode) & 0o7777,
		uid: st.Uid, gid: st.Gid, dev: unix.Mkdev(st.Dev_major, st.Dev_minor),
	}, e
}

func unshare(flags uintptr) syscall.Errno {
	_, e := call(unix.SYS_UNSHARE, flags)
	return e
}

func fchdir(dir int) syscall.Errno {
	_, e := call(unix.SYS_FCHDIR, uintptr(dir))
	return e
}

func mkdirAt(dir int, name string, mode uint32) syscall.Errno {
	_, e := call(unix.SYS_MKDIRAT, uintptr(dir), uintptr(cstr(name)), uintptr(mode))
	return e
}

// mknodAt creates a device node, or a regular file.
func mknodAt(dir int, name string, mode uint32, dev uint64) syscall.Errno {
	_, e := call(unix.SYS_MKNODAT, uintptr(dir), uintptr(cstr(name)), uintptr(mode), uintptr(dev))
	return e
}

func symlinkAt(content string, dir int, name string) syscall.Errno {
	_, e := call(unix.SYS_SYMLINKAT, uintptr(cstr(content)), uintptr(dir), uintptr(cstr(name)))
	return e
}

func unlinkAt(dir int, name string, flags uintptr) syscall.Errno {
	_, e := call(unix.SYS_UNLINKAT, uintptr(dir), uintptr(cstr(name)), flags)
	return e
}

func readlinkAt(dir int, name string) (string, syscall.Errno) {
	b := make([]byte, unix.PathMax)
	n, e := call(unix.SYS_READLINKAT, uintptr(dir), uintptr(cstr(name)), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if e != 0 {
		return "", e
	}
	return string(b[:n]), 0
}

// chownAt sets the owner of a new entry. It does nothing for root, who already owns new entries.
func chownAt(dir int, name string, uid, gid uint32) syscall.Errno {
	if uid == 0 && gid == 0 {
		return 0
	}
	_, e := call(unix.SYS_FCHOWNAT, uintptr(dir), uintptr(cstr(name)), uintptr(uid), uintptr(gid),
		unix.AT_SYMLINK_NOFOLLOW)
	return e
}

// hasACL reports whether a file in the working directory has an ACL in addition to its mode.
func hasACL(name string) bool {
	n, e := call(unix.SYS_LGETXATTR, uintptr(cstr(name)), uintptr(cstr("system.posix_acl_access")))
	return e == 0 && n > 0
}

// list returns the names in an open directory.
func list(dir int) ([]string, syscall.Errno) {
	var names []string
	buf := make([]byte, 8192)
	for {
		n, e := call(unix.SYS_GETDENTS64, uintptr(dir), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		if e != 0 {
			return nil, e
		}
		if n == 0 {
			return names, 0
		}
		_, _, names = syscall.ParseDirent(buf[:n], -1, names)
	}
}

// below reports whether path is inside the directory dir. Both must be clean.
func below(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && strings.HasPrefix(path, dir) || dir == "/" && path != "/"
}
