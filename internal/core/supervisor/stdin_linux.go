// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// openStdin returns a pipe for a task's stdin. The descriptor is open for writing, too, so reads never reach the end of
// file, even if the supervisor has ended. The pipe belongs to the task's user, like the output streams, so that the
// task can open /dev/stdin.
func openStdin(user *task.User) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("failed to create the task's stdin: %w", err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	if user != nil {
		if err := unix.Fchown(ends[0], int(user.UID), int(user.GID)); err != nil {
			return nil, fmt.Errorf("failed to change the owner of the task's stdin: %w", err)
		}
	}

	path := fmt.Sprintf("/proc/self/fd/%d", ends[0])
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("failed to open the task's stdin: %w", err)
	}
	return os.NewFile(uintptr(fd), "stdin"), nil
}
