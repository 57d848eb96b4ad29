// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"time"

	"golang.org/x/sys/unix"
)

// Open returns a pidfd of the process; the caller closes it. The error is ESRCH if the process is
// gone, even if another process has its pid now.
func (id Identity) Open() (int, error) {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		return -1, err
	}
	if !id.Alive() { // after the open: if the process is still alive, the pidfd refers to it
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// Dead reports whether the process of a pidfd has exited, reaped or not. It waits for the exit
// until the timeout.
func Dead(pidfd int, timeout time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	end := time.Now().Add(timeout)
	for {
		n, err := unix.Poll(fds, int(max(0, time.Until(end).Milliseconds())))
		if err != unix.EINTR {
			return err == nil && n > 0
		}
	}
}
