// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// firstInode is that of each subvolume's root.
const firstInode = 256

func isSubvolume(info fs.FileInfo) bool {
	return info.IsDir() && info.Sys().(*syscall.Stat_t).Ino == firstInode
}

// subvolumeInfo is what the kernel tells of a subvolume.
type subvolumeInfo struct {
	id           uint64
	created      time.Time
	uuid, parent [16]byte
}

// subvolume returns that of the subvolume at a path.
func subvolume(path string) (subvolumeInfo, error) {
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return subvolumeInfo{}, err
	}
	defer f.Close()
	type timespec struct {
		sec  uint64
		nsec uint32
	}
	var args struct { // struct btrfs_ioctl_get_subvol_info_args
		id                     uint64
		_                      [256]byte // its name
		_, _, _, _             uint64
		uuid, parent, _        [16]byte
		_, _, _, _             uint64
		_, otime, stime, rtime timespec
		_                      [8]uint64
	}
	if err := ioctl(f, iocGetSubvolInfo, unsafe.Pointer(&args)); err != nil {
		return subvolumeInfo{}, fmt.Errorf("failed to ask what subvolume %s is: %w", path, err)
	}
	return subvolumeInfo{
		id:      args.id,
		created: time.Unix(int64(args.otime.sec), int64(args.otime.nsec)).UTC(), //nolint:gosec // a time
		uuid:    args.uuid,
		parent:  args.parent,
	}, nil
}

// nestedSubvolume is one that a task has made in its dataset.
type nestedSubvolume struct {
	id   uint64
	path string
}

// nested returns the subvolumes in one, innermost first.
func nested(path string) ([]nestedSubvolume, error) {
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return nestedIn(f, path)
}

func nestedIn(f *os.File, path string) (all []nestedSubvolume, err error) {
	for from := uint64(0); ; {
		var refs struct { // struct btrfs_ioctl_get_subvol_rootref_args
			from uint64
			at   [255]struct{ id, dir uint64 }
			n    uint8
			_    [7]byte
		}
		refs.from = from
		err := ioctl(f, iocGetSubvolRootref, unsafe.Pointer(&refs))
		if err != nil && !errors.Is(err, unix.EOVERFLOW) {
			return nil, fmt.Errorf("failed to look for subvolumes in %s: %w", path, err)
		}
		for _, ref := range refs.at[:refs.n] {
			inner, err := nestedAt(f, path, ref.id, ref.dir)
			if err != nil {
				return nil, err
			}
			all = append(all, inner...)
			from = ref.id + 1
		}
		if err == nil || refs.n == 0 {
			return all, nil
		}
	}
}

// nestedAt returns one and those in it. A task may rename it or its parents, to links too,
// meanwhile: then this fails.
func nestedAt(f *os.File, path string, id, dir uint64) ([]nestedSubvolume, error) {
	args := struct { // struct btrfs_ioctl_ino_lookup_user_args
		dir, id uint64
		name    [256]byte
		path    [3824]byte
	}{dir: dir, id: id}
	if err := ioctl(f, iocInoLookupUser, unsafe.Pointer(&args)); err != nil {
		return nil, fmt.Errorf("failed to find a subvolume in %s: %w", path, err)
	}
	below := text(args.path[:]) + text(args.name[:])
	fd, err := unix.Openat2(int(f.Fd()), below, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path + "/" + below, Err: err}
	}
	inner := os.NewFile(uintptr(fd), below)
	defer inner.Close()
	all, err := nestedIn(inner, path+"/"+below)
	return append(all, nestedSubvolume{id, path + "/" + below}), err
}

func text(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}

// From include/uapi/linux/btrfs.h and btrfs_tree.h.
const (
	iocFsInfo           = 0x8400941f
	iocGetSubvolInfo    = 0x81f8943c
	iocGetSubvolRootref = 0xd000943d
	iocInoLookupUser    = 0xd000943e
)

func ioctl(f *os.File, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
