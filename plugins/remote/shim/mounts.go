// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// unmount detaches what a task has left mounted below a directory that is to be removed: a removal would go on into
// it, and empty what is mounted. It is an error where this process may not.
func unmount(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, dir+"/"), false
	})
	if err != nil {
		return fmt.Errorf("failed to look for what is mounted below %s: %w", dir, err)
	}
	if len(mounts) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%q on the host has a file system that the task has mounted: unmount it there (fusermount -u)",
			mounts[0].Mountpoint)
	}
	// a task of the same user may replace a directory by a link meanwhile: a Root is not led out
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	slices.SortFunc(mounts, func(a, b *mountinfo.Info) int { return cmp.Compare(len(b.Mountpoint), len(a.Mountpoint)) })
	for _, m := range mounts {
		f, err := root.OpenFile(strings.TrimPrefix(m.Mountpoint, dir+"/"), unix.O_PATH, 0)
		if err == nil {
			err = unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.MNT_DETACH)
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("failed to unmount %q on the host: %w", m.Mountpoint, err)
		}
	}
	return nil
}
