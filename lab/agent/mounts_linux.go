// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"fmt"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mounts returns the mount points at and below dir, the last mounted first.
func mounts(dir string) (points []string, err error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("failed to read the mounts: %w", err)
	}
	for _, m := range slices.Backward(infos) {
		points = append(points, m.Mountpoint)
	}
	return points, nil
}

// unmountBelow detaches every mount at and below dir: Nomad's secrets and private
// directories of tasks are tmpfs.
func unmountBelow(dir string) error {
	points, err := mounts(dir)
	if err != nil {
		return err
	}
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("failed to unmount %s: %w", p, err)
		}
	}
	return nil
}
