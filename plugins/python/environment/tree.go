// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// tree is what a directory looks like without reading its files.
type tree struct {
	// Digest is over name, mode, owner, size, inode, times and link target of all that is in it. No process can set the
	// ctime, so that a change of a file cannot be hidden.
	Digest string `json:"digest"`
	Files  int    `json:"files"`
	Size   int64  `json:"size"` // bytes on the disk
}

// measure looks at a directory that is sealed, so that nobody else can change it meanwhile. It follows no links.
func measure(dir string) (tree, error) {
	var t tree
	digest := sha256.New()
	if err := t.add(dir, digest); err != nil {
		return tree{}, fmt.Errorf("failed to look at %s: %w", dir, err)
	}
	t.Digest = hex.EncodeToString(digest.Sum(nil))
	return t, nil
}

// add adds a directory, and then all that is in it.
func (t *tree) add(dir string, digest hash.Hash) error {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range append(names, ".") {
		var st unix.Stat_t
		err := unix.EINTR
		for err == unix.EINTR {
			err, _ = unix.Fstatat(int(f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW).(unix.Errno)
		}
		if err != 0 {
			return &os.PathError{Op: "stat", Path: filepath.Join(dir, name), Err: err}
		}
		if name != "." && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			digest.Write([]byte(name + "/\x00"))
			if err := t.add(filepath.Join(dir, name), digest); err != nil {
				return err
			}
			continue
		}
		record := append([]byte(name), 0)
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			target, err := os.Readlink(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			record = append(append(record, target...), 0)
		}
		for _, v := range []uint64{
			uint64(st.Mode), uint64(st.Uid)<<32 | uint64(st.Gid), uint64(st.Size), st.Ino,
			uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec),
		} {
			record = binary.LittleEndian.AppendUint64(record, v)
		}
		digest.Write(record)
		t.Files++
		t.Size += st.Blocks * 512
	}
	return nil
}
