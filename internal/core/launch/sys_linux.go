package launch

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The launcher uses raw system calls throughout: with the others the runtime may
// start a thread to replace a blocked one, which a low ulimit -u makes fatal, and
// setuid and the like would be meant for all threads, while only the one that
// execs matters.

// retry repeats a call that a signal interrupted.
func retry(call func() syscall.Errno) syscall.Errno {
	for {
		if e := call(); e != unix.EINTR {
			return e
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
	p := cstr(path)
	errno = retry(func() syscall.Errno {
		r, _, e := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(p), uintptr(flags|unix.O_CLOEXEC), 0, 0, 0)
		fd = int(r)
		return e
	})
	return fd, errno
}

// openBeneath opens a path below dir without leaving it, not even by a link (openat2(2), Linux 5.6).
func openBeneath(dir int, path string, flags int) (fd int, errno syscall.Errno) {
	p := cstr(path)
	how := &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	errno = retry(func() syscall.Errno {
		r, _, e := unix.RawSyscall6(unix.SYS_OPENAT2, uintptr(dir), uintptr(p), uintptr(unsafe.Pointer(how)), unsafe.Sizeof(*how), 0, 0)
		fd = int(r)
		return e
	})
	return fd, errno
}

func closeFD(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func read(fd int, b []byte) (n int, errno syscall.Errno) {
	errno = retry(func() syscall.Errno {
		r, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		n = int(r)
		return e
	})
	return n, errno
}

func write(fd int, b []byte) syscall.Errno {
	return retry(func() syscall.Errno {
		_, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		return e
	})
}

// writeFile writes b to a file that exists, in one write.
func writeFile(path string, b string) syscall.Errno {
	fd, e := open(unix.AT_FDCWD, path, unix.O_WRONLY)
	if e != 0 {
		return e
	}
	defer closeFD(fd)
	return write(fd, []byte(b))
}

func stat(path string, st *unix.Stat_t) syscall.Errno {
	p := cstr(path)
	return retry(func() syscall.Errno {
		_, _, e := unix.RawSyscall6(sysFstatat, atFDCWD, uintptr(p), uintptr(unsafe.Pointer(st)), 0, 0, 0)
		return e
	})
}

// lstatAt is stat of an entry of a directory, which is not followed where it is a link.
func lstatAt(dir int, name string, st *unix.Stat_t) syscall.Errno {
	p := cstr(name)
	return retry(func() syscall.Errno {
		_, _, e := unix.RawSyscall6(sysFstatat, uintptr(dir), uintptr(p), uintptr(unsafe.Pointer(st)), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, 0)
		return e
	})
}

func fstat(fd int, st *unix.Stat_t) syscall.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_FSTAT, uintptr(fd), uintptr(unsafe.Pointer(st)), 0)
	return e
}

// mayExecute is access(2) with X_OK: the launcher's real and effective ids are the same.
func mayExecute(path string) syscall.Errno {
	p := cstr(path)
	return retry(func() syscall.Errno {
		_, _, e := unix.RawSyscall(unix.SYS_FACCESSAT, atFDCWD, uintptr(p), unix.X_OK)
		return e
	})
}

func prctl(option int, arg uintptr) syscall.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_PRCTL, uintptr(option), arg, 0, 0, 0, 0)
	return e
}

// atFDCWD is AT_FDCWD as an argument: a relative path is relative to the working directory.
const atFDCWD = ^uintptr(-unix.AT_FDCWD - 1)

func exit(code int) {
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
}
