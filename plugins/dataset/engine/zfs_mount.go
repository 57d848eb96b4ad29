// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// Mount mounts a dataset at dir unless it is already mounted there, verifies that the mount shows this dataset, and
// returns dir. It may be called more than once.
func (e *Engine) Mount(ctx context.Context, name, dir string) (string, error) {
	p, err := e.get(ctx, name)
	if err != nil {
		return "", err
	}
	at, err := mountDir(dir)
	if err != nil {
		return "", err
	}
	if verify(p.full, at) == nil {
		return dir, nil
	}
	mounted, err := ownMounts()
	if err != nil {
		return "", err
	}
	if len(mountsOf(mounted, p.full)) > 0 { // mounted at another directory
		if _, err := e.unmount(ctx, p); err != nil {
			return "", err
		}
	}
	for _, want := range [][2]string{{"canmount", "noauto"}, {"mountpoint", at}} { // canmount first, so zfs does not mount
		if have := p.values[want[0]]; have.value != want[1] || have.source != "local" {
			if err := e.do(ctx, "set", want[0]+"="+want[1], p.full); err != nil {
				return "", err
			}
		}
	}
	return dir, e.mount(ctx, p.full, at)
}

// mount mounts a dataset at dir. The caller has set the dataset's property mountpoint to dir.
func (e *Engine) mount(ctx context.Context, full, dir string) error {
	if verify(full, dir) == nil {
		return nil
	}
	if err := makeMountDir(dir); err != nil {
		return err
	}
	err := e.do(ctx, "mount", full)
	if verifyErr := verify(full, dir); verifyErr != nil {
		return also(err, verifyErr)
	}
	return nil
}

// verify returns an error unless the topmost mount at dir shows the dataset.
func verify(full, dir string) error {
	mounted, err := ownMounts()
	if err != nil {
		return err
	}
	switch top := topAt(mounted, dir); {
	case top == nil:
		return fmt.Errorf("dataset %s is not mounted at %s", full, dir)
	case !isDataset(top, full):
		return fmt.Errorf("%s is mounted at %s instead of dataset %s", top.Source, dir, full)
	}
	return nil
}

// unmount unmounts a dataset and removes the mount point: a task that starts now must not get an empty directory of the
// host. remount mounts the dataset again. If the kernel reports the dataset as busy, or if this mount namespace has
// another mount of it, unmount returns ErrInUse and changes nothing. Mounts in other mount namespaces, such as a
// task's, stay: see mountedElsewhere.
func (e *Engine) unmount(ctx context.Context, p properties) (remount func() error, err error) {
	mounted, err := ownMounts()
	if err != nil {
		return nil, err
	}
	at := mountsOf(mounted, p.full)
	for _, m := range mounted {
		if isOf(m, p.full) && (len(at) == 0 || m.Mountpoint != at[0].Mountpoint) {
			return nil, fmt.Errorf("dataset %s is %w: it is mounted at %q", p.full, ErrInUse, m.Mountpoint)
		}
	}
	if len(at) == 0 {
		return func() error { return nil }, removeMountDir(p.value("mountpoint"))
	}
	dir := at[0].Mountpoint
	remount = func() error { return e.mount(context.WithoutCancel(ctx), p.full, dir) }
	for range at {
		err := unmountAt(ctx, dir)
		if errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("%w: %w", ErrInUse, err)
		}
		if err != nil {
			return nil, fmt.Errorf("dataset %s can't be unmounted from %q: %w", p.full, dir, err)
		}
	}
	err = removeMountDir(dir)
	if err != nil {
		return nil, also(err, remount())
	}
	return remount, nil
}

// mountedElsewhere returns ErrInUse if a dataset that was unmounted here is still mounted in another mount namespace. A
// rollback would change files that are open there, and "destroy -r" would remove the snapshots before the kernel
// reports the dataset as busy. OpenZFS has a file with statistics of a dataset while the dataset is mounted anywhere.
func mountedElsewhere(p properties) error {
	pool := poolOf(p.full)
	statistics := fmt.Sprintf("/proc/spl/kstat/zfs/%s/objset-%#x", pool, p.bytes("objsetid"))
	for range 50 { // after the exit of a process the kernel unmounts its namespace in the background
		_, err := os.Lstat(statistics)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("dataset %s is %w: it is mounted in another mount namespace", p.full, ErrInUse)
}

// unmountAt calls umount2(2) with a timeout.
func unmountAt(ctx context.Context, dir string) error {
	done := make(chan error, 1)
	go func() { done <- unix.Unmount(dir, unix.UMOUNT_NOFOLLOW) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(programLimit):
		return ErrUnavailable
	}
}

// ownMounts returns the mounts in this process's mount namespace.
func ownMounts() ([]*mountinfo.Info, error) {
	mounted, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("failed to read the mounts: %w", err)
	}
	return mounted, nil
}

// isOf reports whether a mount shows a dataset, or a directory in it. A FUSE mount, which tests use instead of the
// kernel module, must be root's: any user can make a FUSE mount with this type and a dataset's name.
func isOf(m *mountinfo.Info, full string) bool {
	return m.Source == full && (m.FSType == "zfs" ||
		m.FSType == "fuse.zfs" && slices.Contains(strings.Split(m.VFSOptions, ","), "user_id=0"))
}

// isDataset reports whether a mount shows a dataset's root directory.
func isDataset(m *mountinfo.Info, full string) bool { return m.Root == "/" && isOf(m, full) }

func mountsOf(mounted []*mountinfo.Info, full string) []*mountinfo.Info {
	return slices.DeleteFunc(slices.Clone(mounted), func(m *mountinfo.Info) bool { return !isDataset(m, full) })
}

// topAt returns the topmost mount at a directory, or nil.
func topAt(mounted []*mountinfo.Info, dir string) (top *mountinfo.Info) {
	for _, m := range mounted {
		if m.Mountpoint == dir && (top == nil || m.Parent == top.ID) {
			top = m
		}
	}
	return top
}

// mountDir makes the parent of dir and returns dir without symbolic links. It refuses a parent that can be changed by
// users other than root and "nomad".
func mountDir(dir string) (string, error) {
	parent, err := owndir.Make(filepath.Dir(dir), 0o711, owndir.Nomad()...)
	if err != nil {
		return "", err
	}
	return filepath.Join(parent.Name(), filepath.Base(dir)), parent.Close()
}

// makeMountDir makes the mount point dir. While nothing is mounted there, only root can write to it (mode 0). It
// replaces an empty directory, and fails if dir has files, is mounted or is not a directory.
func makeMountDir(dir string) error {
	err := unix.Rmdir(dir)
	if err != nil && err != unix.ENOENT {
		return fmt.Errorf("failed to make the mount point of a dataset: %w; move %s away", err, dir)
	}
	return os.Mkdir(dir, 0)
}

// removeMountDir removes a previous mount point if it is empty.
func removeMountDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return nil
	}
	switch err := unix.Rmdir(dir); err {
	case nil, unix.ENOENT, unix.ENOTEMPTY, unix.EBUSY, unix.ENOTDIR:
		return nil
	default:
		return fmt.Errorf("failed to remove %s: %w", dir, err)
	}
}

// SetOwner sets the owner and mode of a dataset's directory. It does not follow a link at path.
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
