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
	"path"
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

// measure looks at a directory. It follows no links.
func measure(dir string) (tree, error) {
	t, err := walk(dir, nil)
	if err != nil {
		return t, fmt.Errorf("failed to look at %s: %w", dir, err)
	}
	return t, nil
}

// maxDepth bounds the descriptors and the stack that a malicious tree takes.
const maxDepth = 100

var errTooDeep = fmt.Errorf("directories are nested more than %d deep", maxDepth)

// walk goes through a directory once, and seals it unless s is nil. Directories are reached from their parent's
// descriptor, never by a path.
func walk(dir string, s *sealing) (tree, error) {
	fd, err := openDir(unix.AT_FDCWD, dir)
	if err != nil {
		return tree{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	w := walker{seal: s, digest: sha256.New()}
	if err := w.directory(fd, "", 0); err != nil {
		return tree{}, err
	}
	return tree{hex.EncodeToString(w.digest.Sum(nil)), w.files, w.size}, nil
}

type walker struct {
	seal   *sealing // nil to change nothing
	digest hash.Hash
	files  int
	size   int64
}

// directory closes fd. rel is its path in the tree.
func (w *walker) directory(fd int, rel string, depth int) error {
	defer unix.Close(fd)
	if depth > maxDepth {
		return errTooDeep
	}
	var st unix.Stat_t
	if w.seal != nil {
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if err := w.seal.enter(fd, rel, &st); err != nil {
			return err
		}
	}
	names, err := readNames(fd)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := fstatat(fd, name, &st); err != nil {
			return err
		}
		w.files++
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = w.entry(fd, name, rel, &st)
		} else {
			fmt.Fprintf(w.digest, "%s/\x00", name) // no name has a slash
			var sub int
			if sub, err = openDir(fd, name); err == nil {
				err = w.directory(sub, path.Join(rel, name), depth+1)
			}
		}
		if err != nil {
			return err
		}
	}
	if w.seal != nil {
		if err := w.seal.leave(fd, rel); err != nil {
			return err
		}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	w.add("", &st) // ends the directory
	return nil
}

// entry adds what is no directory, as it is after the sealing.
func (w *walker) entry(dir int, name, rel string, st *unix.Stat_t) error {
	if w.seal != nil {
		err := w.seal.entry(dir, name, path.Join(rel, name), st)
		if err == nil {
			err = fstatat(dir, name, st)
		}
		if err != nil {
			return err
		}
	}
	w.add(name, st)
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return nil
	}
	target, err := readLink(dir, name)
	fmt.Fprintf(w.digest, "%s\x00", target)
	return err
}

func (w *walker) add(name string, st *unix.Stat_t) {
	w.size += st.Blocks * 512
	record := append(make([]byte, 0, len(name)+65), name...)
	record = append(record, 0)
	for _, v := range []uint64{
		uint64(st.Mode), uint64(st.Uid)<<32 | uint64(st.Gid), uint64(st.Size), st.Ino,
		uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec),
	} {
		record = binary.LittleEndian.AppendUint64(record, v)
	}
	w.digest.Write(record)
}

func openDir(at int, name string) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

func fstatat(fd int, name string, st *unix.Stat_t) error {
	return retry(func() error { return unix.Fstatat(fd, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

func readLink(fd int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func readNames(fd int) ([]string, error) {
	var names []string
	buf := make([]byte, 32<<10)
	for {
		var n int
		err := retry(func() (err error) { n, err = unix.ReadDirent(fd, buf); return err })
		if err != nil || n == 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// retry is for calls that a signal may interrupt.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
