// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The launcher makes only raw system calls. During other calls, the runtime may start a thread to replace a blocked
// one; under a low ulimit -u, this fails and ends the process. Also, setuid and similar calls would change all threads,
// while only the one that calls execve matters.

// call makes a system call, and repeats it if a signal interrupts it. As with [unix.RawSyscall], its arguments may be
// pointers that are converted in the call expression.
//
//go:uintptrescapes
func call(trap uintptr, args ...uintptr) (uintptr, syscall.Errno) {
	var a [6]uintptr
	copy(a[:], args)
	for {
		r, _, e := unix.RawSyscall6(trap, a[0], a[1], a[2], a[3], a[4], a[5])
		if e != unix.EINTR {
			return r, e
		}
	}
}

// cstr returns the C string of s.
func cstr(s string) unsafe.Pointer {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return unsafe.Pointer(&b[0])
}

func open(dir int, path string, flags int) (fd int, errno syscall.Errno) {
	r, e := call(unix.SYS_OPENAT, uintptr(dir), uintptr(cstr(path)), uintptr(flags|unix.O_CLOEXEC))
	return int(r), e
}

// openBeneath opens a path below dir without leaving it, not even by a link (openat2(2), Linux 5.6).
func openBeneath(dir int, path string, flags int) (fd int, errno syscall.Errno) {
	how := &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	r, e := call(unix.SYS_OPENAT2, uintptr(dir), uintptr(cstr(path)), uintptr(unsafe.Pointer(how)), unsafe.Sizeof(*how))
	return int(r), e
}

// closeFD closes a descriptor. It does not repeat the call: even after EINTR, the descriptor is closed (close(2)).
func closeFD(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func read(fd int, b []byte) (n int, errno syscall.Errno) {
	r, e := call(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(r), e
}

// write writes b with one system call. It returns ENOSPC if only a part was written.
func write(fd int, b []byte) syscall.Errno {
	n, e := call(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if e == 0 && n < uintptr(len(b)) {
		e = unix.ENOSPC
	}
	return e
}

// writeFile writes b to an existing file with one system call: see write.
func writeFile(path string, b string) syscall.Errno {
	fd, e := open(unix.AT_FDCWD, path, unix.O_WRONLY)
	if e != 0 {
		return e
	}
	defer closeFD(fd)
	return write(fd, []byte(b))
}

func stat(path string, st *unix.Stat_t) syscall.Errno {
	_, e := call(sysFstatat, atFDCWD, uintptr(cstr(path)), uintptr(unsafe.Pointer(st)))
	return e
}

// lstatAt is lstat(2) for an entry of a directory.
func lstatAt(dir int, name string, st *unix.Stat_t) syscall.Errno {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	_, e := call(sysFstatat, uintptr(dir), uintptr(cstr(name)), uintptr(unsafe.Pointer(st)), flags)
	return e
}

func fstat(fd int, st *unix.Stat_t) syscall.Errno {
	_, e := call(unix.SYS_FSTAT, uintptr(fd), uintptr(unsafe.Pointer(st)))
	return e
}

// mayExecute calls access(2) with X_OK, which checks the real ids: the launcher's effective ids are the same.
func mayExecute(path string) syscall.Errno {
	_, e := call(unix.SYS_FACCESSAT, atFDCWD, uintptr(cstr(path)), unix.X_OK)
	return e
}

// statfs returns the mount flags of the file system that a path is on.
func statfs(path string) (flags int64, errno syscall.Errno) {
	var fs unix.Statfs_t
	_, e := call(unix.SYS_STATFS, uintptr(cstr(path)), uintptr(unsafe.Pointer(&fs)))
	return fs.Flags, e
}

// atFDCWD is AT_FDCWD as an argument of call.
const atFDCWD = ^uintptr(-unix.AT_FDCWD - 1)

func exit(code int) {
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
}
