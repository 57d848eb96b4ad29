// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A dataset's limit is on what its subvolume references: qgroup 0/<id>. That, and the
// snapshots, are in a qgroup of level 1, 1/<key>, from the first snapshot on. What they hold is
// read from sysfs: `btrfs qgroup show` prints the names of subvolumes, which tasks choose, newlines
// and all.

func subvolumeGroup(id uint64) string { return fmt.Sprintf("0/%d", id) }

func (r *record) group() string { return fmt.Sprintf("1/%d", r.Key) }

// quota is the file system's directory in sysfs.
type quota string

// quota returns an error if quotas are off.
func (b *btrfs) quota() (quota, error) {
	dir, err := os.OpenFile(b.root, unix.O_DIRECTORY, 0)
	if err != nil {
		return "", fmt.Errorf("failed to open the root: %w", err)
	}
	defer dir.Close()
	var info struct { // struct btrfs_ioctl_fs_info_args
		_    [2]uint64
		fsid [16]byte
		_    [992]byte
	}
	if err := ioctl(dir, iocFsInfo, unsafe.Pointer(&info)); err != nil {
		return "", fmt.Errorf("failed to ask for the id of the file system: %w", err)
	}
	id := hex.EncodeToString(info.fsid[:])
	path := fmt.Sprintf("/sys/fs/btrfs/%s-%s-%s-%s-%s/qgroups", id[:8], id[8:12], id[12:16], id[16:20], id[20:])
	if on, err := os.ReadFile(filepath.Join(path, "enabled")); err != nil || strings.TrimSpace(string(on)) != "1" {
		return "", fmt.Errorf("quotas are off on the btrfs of %s: run btrfs quota enable %s: %w", b.root, b.root,
			ErrUnavailable)
	}
	return quota(path), nil
}

// referenced returns how many bytes a qgroup has, 0 if it does not exist.
func (q quota) referenced(group string) int64 {
	text, err := os.ReadFile(filepath.Join(string(q), strings.Replace(group, "/", "_", 1), "referenced"))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

func (q quota) exists(group string) bool {
	return exists(filepath.Join(string(q), strings.Replace(group, "/", "_", 1)))
}

// limit sets the limit of the subvolume at a path, or of a qgroup below it.
func (b *btrfs) limit(ctx context.Context, bytes int64, path string, group ...string) error {
	size := "none"
	if bytes > 0 {
		size = strconv.FormatInt(bytes, 10)
	}
	_, err := b.program.run(ctx, append(append([]string{"qgroup", "limit", size}, group...), path)...)
	return err
}

// removeGroup removes the qgroup of what was deleted. It is left as long as the kernel has not
// given up all of the subvolume's blocks, which it does in the background: without the numbers
// those above it would be wrong. Linux 6.10 and later remove those of subvolumes by themselves.
func (b *btrfs) removeGroup(ctx context.Context, group string) (left bool, err error) {
	q, err := b.quota()
	if err != nil || !q.exists(group) {
		return false, err
	}
	if q.referenced(group) > 0 {
		return true, nil
	}
	_, err = b.program.run(ctx, "qgroup", "destroy", group, b.root)
	var f *failure
	if errors.As(err, &f) && strings.Contains(f.line, "busy") {
		return true, nil
	}
	if err != nil && !q.exists(group) {
		err = nil
	}
	return false, err
}

// deleteSubvolume deletes a subvolume, and before it those that tasks have made in it.
func (b *btrfs) deleteSubvolume(ctx context.Context, path string) error {
	_, err := b.program.run(ctx, "subvolume", "delete", "--commit-after", path)
	return err
}

// firstInode is that of each subvolume's root.
const firstInode = 256

func isSubvolume(info fs.FileInfo) bool {
	return info.IsDir() && info.Sys().(*syscall.Stat_t).Ino == firstInode
}

// From include/uapi/linux/btrfs.h.
const (
	iocFsInfo    = 0x8400941f
	iocInoLookup = 0xd0009412
)

// subvolumeID returns the id of the subvolume at a path.
func subvolumeID(path string) (uint64, error) {
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	args := struct { // struct btrfs_ioctl_ino_lookup_args
		tree, object uint64
		_            [4080]byte
	}{object: firstInode}
	if err := ioctl(f, iocInoLookup, unsafe.Pointer(&args)); err != nil {
		return 0, fmt.Errorf("failed to ask for the id of %s: %w", path, err)
	}
	return args.tree, nil
}

func ioctl(f *os.File, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
