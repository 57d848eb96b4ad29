// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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

// referenced returns how many bytes a qgroup has, and exclusive those that no other has. They are
// 0 if it does not exist.
func (q quota) referenced(group string) int64 { return q.number(group, "referenced") }
func (q quota) exclusive(group string) int64  { return q.number(group, "exclusive") }

func (q quota) number(group, which string) int64 {
	text, err := os.ReadFile(filepath.Join(string(q), strings.Replace(group, "/", "_", 1), which))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

func (q quota) exists(group string) bool {
	return exists(filepath.Join(string(q), strings.Replace(group, "/", "_", 1)))
}

// rescan has the kernel count again after a change that it can't follow, such as a snapshot of
// what shares blocks with a clone. Until it is done the limits are not enforced. In a large file
// system that takes longer than is waited for here.
func (b *btrfs) rescan(ctx context.Context) error {
	q, err := b.quota()
	if err != nil {
		return err
	}
	wrong, err := os.ReadFile(filepath.Join(string(q), "inconsistent"))
	if err != nil || strings.TrimSpace(string(wrong)) != "1" {
		return nil // Linux before 5.9 has no such file
	}
	ctx, cancel := context.WithTimeout(ctx, rescanWait)
	defer cancel()
	_, err = b.program.run(ctx, "quota", "rescan", "-w", b.root)
	if ctx.Err() != nil {
		return nil // the kernel goes on with it
	}
	return err
}

const rescanWait = 5 * time.Second

// join adds a dataset and its snapshots to the qgroup of level 1, and limits that.
func (b *btrfs) join(ctx context.Context, name string, r *record) error {
	if r.Grouped {
		return nil
	}
	snapshots, err := b.snapshotNames(r)
	if err != nil {
		return err
	}
	groups := []string{subvolumeGroup(r.Subvolume)}
	for _, s := range snapshots {
		info, err := subvolume(b.snapshotPath(r, s))
		if err != nil {
			return err
		}
		groups = append(groups, subvolumeGroup(info.id))
	}
	err = b.once(ctx, "qgroup", "create", r.group(), b.root)
	for _, group := range groups {
		if err == nil {
			err = b.once(ctx, "qgroup", "assign", group, r.group(), b.root)
		}
	}
	if err == nil {
		err = b.limitGroup(ctx, r)
	}
	if err != nil {
		return err
	}
	r.Grouped = true
	return b.save(name, r)
}

// once runs a command that may have been run before.
func (b *btrfs) once(ctx context.Context, args ...string) error {
	_, err := b.program.run(ctx, args...)
	var f *failure
	if errors.As(err, &f) && strings.Contains(f.line, "File exists") {
		return nil
	}
	return err
}

func (b *btrfs) limitGroup(ctx context.Context, r *record) error {
	all := int64(0)
	if r.Limits.Data > 0 && r.Limits.Snapshots > 0 {
		all = r.Limits.Data + r.Limits.Snapshots
	}
	return b.limit(ctx, all, b.root, r.group())
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

// deleteSubvolume deletes a subvolume, and before it those that tasks have made in it. Their
// qgroups are removed later (sweep).
func (b *btrfs) deleteSubvolume(ctx context.Context, path string) error {
	inside, err := nested(path)
	if err != nil {
		return err
	}
	for _, n := range inside { // nobody can rename them, since nobody uses it
		if err := b.save(goneName(n.id), &record{Subvolume: n.id}); err != nil {
			return err
		}
		if _, err := b.program.run(ctx, "subvolume", "delete", n.path); err != nil {
			return err
		}
	}
	_, err = b.program.run(ctx, "subvolume", "delete", "--commit-after", path)
	return err
}
