// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SetOwner says who may use the directory of a dataset. It does not follow a link at path.
func SetOwner(path string, uid, gid int, mode uint32) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Fchown(fd, uid, gid)
	}
	if err == nil {
		err = unix.Fchmod(fd, mode)
	}
	if err != nil {
		return fmt.Errorf("failed to set the owner of %s: %w", path, err)
	}
	return nil
}
