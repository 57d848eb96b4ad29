// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"sync"

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

// branch is a directory as it was when it was left.
type branch struct {
	stat    unix.Stat_t
	content [sha256.Size]byte // a digest of all that is in it
	files   int
	size    int64 // without the directory itself
	err     error
}

// walk goes through a directory once, and seals it unless s is nil. Directories are reached from their parent's
// descriptor, never by a path.
func walk(dir string, s *sealing) (tree, error) {
	fd, err := openDir(unix.AT_FDCWD, dir)
	if err != nil {
		return tree{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	w := walker{s, make(chan struct{}, min(4, runtime.GOMAXPROCS(0))-1)} // each may take a thread, which stays
	b := w.directory(fd, "", 0)
	if b.err != nil {
		return tree{}, b.err
	}
	sum := sha256.Sum256(append(appendStat(nil, &b.stat), b.content[:]...))
	return tree{hex.EncodeToString(sum[:]), b.files, b.size + b.stat.Blocks*512}, nil
}

// walker looks at a few directories at a time.
type walker struct {
	seal *sealing      // nil to change nothing
	free chan struct{} // a semaphore
}

// directory closes fd. rel is its path in the tree.
func (w *walker) directory(fd int, rel string, depth int) (b branch) {
	defer unix.Close(fd)
	if depth > maxDepth {
		return branch{err: errTooDeep}
	}
	if w.seal != nil {
		if b.err = unix.Fstat(fd, &b.stat); b.err == nil {
			b.err = w.seal.enter(fd, rel, &b.stat)
		}
	}
	var names []string
	if b.err == nil {
		names, b.err = readNames(fd)
	}
	slices.Sort(names)
	type child struct {
		at     int // where its digest belongs in record
		branch branch
	}
	var children []*child
	var others sync.WaitGroup
	record := make([]byte, 0, 128*len(names))
	for _, name := range names {
		var st unix.Stat_t
		if b.err = fstatat(fd, name, &st); b.err != nil {
			break
		}
		b.files++
		record = append(append(record, name...), 0)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if record, b.err = w.entry(record, fd, name, rel, &st); b.err != nil {
				break
			}
			b.size += st.Blocks * 512
			continue
		}
		var sub int
		if sub, b.err = openDir(fd, name); b.err != nil {
			break
		}
		c, below := &child{at: len(record)}, path.Join(rel, name)
		children = append(children, c)
		record = append(record, make([]byte, statSize+sha256.Size)...)
		select {
		case w.free <- struct{}{}:
			others.Go(func() {
				c.branch = w.directory(sub, below, depth+1)
				<-w.free
			})
		default:
			c.branch = w.directory(sub, below, depth+1)
		}
	}
	others.Wait()
	for _, c := range children {
		copy(record[c.at:], append(appendStat(nil, &c.branch.stat), c.branch.content[:]...))
		b.files += c.branch.files
		b.size += c.branch.size + c.branch.stat.Blocks*512
		b.err = errors.Join(b.err, c.branch.err)
	}
	if b.err == nil && w.seal != nil {
		b.err = w.seal.leave(fd, rel)
	}
	if b.err == nil {
		b.err = unix.Fstat(fd, &b.stat)
	}
	b.content = sha256.Sum256(record)
	return b
}

// entry appends what is no directory to the record, as st has it after the sealing.
func (w *walker) entry(record []byte, dir int, name, rel string, st *unix.Stat_t) ([]byte, error) {
	if w.seal != nil {
		err := w.seal.entry(dir, name, path.Join(rel, name), st)
		if err == nil {
			err = fstatat(dir, name, st)
		}
		if err != nil {
			return record, err
		}
	}
	record = appendStat(record, st)
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return record, nil
	}
	target, err := readLink(dir, name)
	return append(append(record, target...), 0), err
}

// statSize is how long what appendStat appends is.
const statSize = 64

func appendStat(to []byte, st *unix.Stat_t) []byte {
	for _, v := range []uint64{
		uint64(st.Mode), uint64(st.Uid)<<32 | uint64(st.Gid), uint64(st.Size), st.Ino,
		uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec),
	} {
		to = binary.LittleEndian.AppendUint64(to, v)
	}
	return to
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
