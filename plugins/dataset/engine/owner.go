// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Find returns a dataset that has these tags. One that has others belongs to somebody else:
// ErrForeign.
func (e *Engine) Find(ctx context.Context, name string, tags Tags) (Dataset, error) {
	d, err := e.Get(ctx, name)
	if err != nil {
		return Dataset{}, err
	}
	for tag, want := range tags {
		if have := d.Tags[tag]; have != want {
			return Dataset{}, fmt.Errorf("dataset %s is that of %s %q, not %q: %w", name, tag, have, want, ErrForeign)
		}
	}
	return d, nil
}

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
