// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// makeBtrfs makes a btrfs in dir/image, mounted at dir/pool, with quotas on.
func makeBtrfs(ctx context.Context, dir string, size int64) (Pool, error) {
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "pool")
	program, err := find("btrfs")
	if err != nil {
		return Pool{}, err
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return Pool{}, err
	}
	if err := os.Truncate(image, size); err != nil {
		return Pool{}, err
	}
	if err := os.Mkdir(mount, 0o711); err != nil {
		return Pool{}, err
	}
	for _, command := range [][]string{
		{"mkfs.btrfs", "-q", image},
		{"mount", "-o", "loop", image, mount},
		{"btrfs", "quota", "enable", mount},
	} {
		if _, err := run(ctx, command[0], command[1:]...); err != nil {
			return Pool{}, fmt.Errorf("failed to make a btrfs pool: %w", err)
		}
	}
	return Pool{Backend: "btrfs", Root: mount, Program: program}, nil
}

func removeBtrfs(ctx context.Context, dir string) error {
	if err := unmountBelow(dir); err != nil {
		return err
	}
	devices, err := run(ctx, "losetup", "--noheadings", "--output", "NAME", "--associated", filepath.Join(dir, "image"))
	if err != nil && exists(filepath.Join(dir, "image")) {
		return err
	}
	for device := range strings.FieldsSeq(devices) { // one of a mount that was killed halfway
		if _, err := run(ctx, "losetup", "--detach", device); err != nil {
			return err
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// unmountBelow unmounts everything below a directory, the last mounts first. What is still
// in use is an error.
func unmountBelow(dir string) error {
	mounted, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, dir+"/"), false
	})
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounted) {
		if err := unix.Unmount(m.Mountpoint, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return &os.PathError{Op: "unmount", Path: m.Mountpoint, Err: err}
		}
	}
	return nil
}
