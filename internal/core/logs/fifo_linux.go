// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package logs moves the output of tasks from FIFOs to rotated files, which have the same names as in Nomad:
// alloc/logs/<task>.stdout.N and .stderr.N in the allocation's directory.
//
// The package is designed for a single event loop: it starts no goroutines, and no call waits for a task. It moves
// bytes with splice(2), which removes a byte from the FIFO only when it is in the file. So a supervisor that is killed
// at any time neither loses nor repeats output. The package is linked into the supervisor's small binary and imports
// only the standard library and x/sys.
package logs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MakeFIFO makes a FIFO in a directory that no task can write to. It replaces an existing file. The FIFO has mode 0600
// and belongs to uid and gid (-1 keeps the default), so only the task can reopen /dev/stdout.
func MakeFIFO(path string, uid, gid int) error {
	if err := unix.Unlink(path); err != nil && err != unix.ENOENT {
		return fmt.Errorf("failed to remove old fifo: %w", &os.PathError{Op: "unlink", Path: path, Err: err})
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return fmt.Errorf("failed to make fifo: %w", &os.PathError{Op: "mkfifo", Path: path, Err: err})
	}
	if err := unix.Lchown(path, uid, gid); err != nil {
		unix.Unlink(path)
		return fmt.Errorf("failed to make fifo: %w", &os.PathError{Op: "chown", Path: path, Err: err})
	}
	return nil
}

// OpenTaskEnd opens the end of a FIFO that the task writes to, in blocking mode. It opens the FIFO for reading as well:
// so the open does not wait for a reader, and a write without a reader does not fail. The caller closes the file.
func OpenTaskEnd(path string) (*os.File, error) {
	// not by os.OpenFile, which sets O_NONBLOCK for a FIFO: the task would inherit the flag
	fd, err := openFIFO(path, unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// OpenReadEnd opens a FIFO for a Stream, non-blocking. This must be a separate open file description: O_NONBLOCK
// belongs to the description, and must not be set for the task.
func OpenReadEnd(path string) (int, error) { return openFIFO(path, unix.O_RDONLY|unix.O_NONBLOCK) }

func openFIFO(path string, flags int) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, fmt.Errorf("failed to open fifo: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	return fd, nil
}

// Queued returns the number of unread bytes in a FIFO (FIONREAD of pipe(7)). fd can be either end.
func Queued(fd int) (int, error) { return unix.IoctlGetInt(fd, unix.TIOCINQ) }

// hungUp reports whether an empty FIFO has lost its last writer.
func hungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := retry(func() (int, error) { return unix.Poll(p, 0) })
	return err == nil && n == 1 && p[0].Revents&unix.POLLHUP != 0 && p[0].Revents&unix.POLLIN == 0
}

// retry repeats a call that was interrupted by a signal; the Go runtime sends signals, too.
func retry[T int | int64](call func() (T, error)) (T, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}
