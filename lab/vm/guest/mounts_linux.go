// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mount is one call of mount(2); the directory is made.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

const plain = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// initial are the mounts for loading modules and finding devices.
var initial = []mount{
	{"proc", "/proc", "proc", plain, ""},
	{"sysfs", "/sys", "sysfs", plain, ""},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
}

// root are the host's files, read-only, and the tmpfs that takes changes.
var root = []mount{
	// files on the host do not change while the guest runs, except for new ones, so they may be cached
	{"host", "/lower", "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,cache=loose,msize=512000"},
	{"overlay", "/upper", "tmpfs", 0, "mode=0755"},
}

// machine are the mounts of a host with systemd, below newRoot.
var machine = []mount{
	{"proc", "/proc", "proc", plain, ""},
	{"sysfs", "/sys", "sysfs", plain, ""},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
	{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,gid=5,ptmxmode=0666"},
	{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	{"mqueue", "/dev/mqueue", "mqueue", plain, ""},
	{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	{"tmpfs", "/run/lock", "tmpfs", plain, "mode=1777"},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", plain, "nsdelegate"},
	{"securityfs", "/sys/kernel/security", "securityfs", plain, ""},
}

const newRoot = "/newroot"

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return fmt.Errorf("failed to make a mount point: %w", err)
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("failed to mount %s on %s: %w", m.kind, m.target, err)
		}
	}
	return nil
}

// becomeHost makes the host's files the root. The new root is a mount of its own over the initramfs, because
// pivot_root(2) does not work on an initramfs.
func becomeHost() error {
	if err := mountAll(root); err != nil {
		return err
	}
	for _, dir := range []string{"/upper/files", "/upper/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	over := []mount{{"overlay", newRoot, "overlay", 0, "lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work"}}
	for _, m := range machine {
		m.target = filepath.Join(newRoot, m.target)
		over = append(over, m)
	}
	if err := mountAll(over); err != nil {
		return err
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("failed to move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("failed to change the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// as systemd leaves it
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("failed to share the mounts: %w", err)
	}
	for link, to := range map[string]string{"fd": "", "stdin": "0", "stdout": "1", "stderr": "2"} {
		if err := os.Symlink(filepath.Join("/proc/self/fd", to), filepath.Join("/dev", link)); err != nil {
			return err
		}
	}
	return nil
}
