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
	b := walk(dir, nil)
	if b.err != nil {
		return tree{}, fmt.Errorf("failed to look at %s: %w", dir, b.err)
	}
	return b.tree(), nil
}

// maxDepth bounds the descriptors and the stack that a malicious tree takes.
const maxDepth = 100

var errTooDeep = fmt.Errorf("directories are nested more than %d deep", maxDepth)

// visitor changes a tree while it is walked. Directories are reached from their parent's descriptor, never by a path.
// Several of them are visited at a time.
type visitor interface {
	enter(fd int, rel string, st *unix.Stat_t) error // a directory, before it is read
	leave(fd int, rel string) error                  // a directory, after all that is in it
	entry(dir int, name, rel string, st *unix.Stat_t) error
}

// branch is a directory as it was when it was left.
type branch struct {
	stat    unix.Stat_t
	content [sha256.Size]byte // a digest of all that is in it
	files   int
	size    int64 // without the directory itself
	err     error
}

func (b *branch) tree() tree {
	sum := sha256.Sum256(append(appendStat(nil, &b.stat), b.content[:]...))
	return tree{hex.EncodeToString(sum[:]), b.files, b.size + b.stat.Blocks*512}
}

// walk goes through a directory once, and has v, unless it is nil, visit all of it.
func walk(dir string, v visitor) branch {
	fd, err := openDir(unix.AT_FDCWD, dir)
	if err != nil {
		return branch{err: &os.PathError{Op: "open", Path: dir, Err: err}}
	}
	w := walker{v, make(chan struct{}, min(4, runtime.GOMAXPROCS(0))-1)} // each may take a thread, which stays
	return w.directory(fd, "", 0)
}

// walker looks at a few directories at a time.
type walker struct {
	visitor visitor
	free    chan struct{} // a semaphore
}

// directory closes fd. rel is its path in the tree, "" without a visitor.
func (w *walker) directory(fd int, rel string, depth int) (b branch) {
	defer unix.Close(fd)
	if depth > maxDepth {
		return branch{err: errTooDeep}
	}
	if w.visitor != nil {
		if b.err = unix.Fstat(fd, &b.stat); b.err == nil {
			b.err = w.visitor.enter(fd, rel, &b.stat)
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
		c, below := &child{at: len(record)}, w.join(rel, name)
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
	if b.err == nil && w.visitor != nil {
		b.err = w.visitor.leave(fd, rel)
	}
	if b.err == nil {
		b.err = unix.Fstat(fd, &b.stat)
	}
	b.content = sha256.Sum256(record)
	return b
}

// entry appends what is no directory to the record, as st has it after the visit.
func (w *walker) entry(record []byte, dir int, name, rel string, st *unix.Stat_t) ([]byte, error) {
	if w.visitor != nil {
		err := w.visitor.entry(dir, name, w.join(rel, name), st)
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

func (w *walker) join(rel, name string) string {
	if w.visitor == nil {
		return ""
	}
	return path.Join(rel, name)
}

// takeOver makes a directory of from ours. Nothing else can change what is in it then, but for open files.
func takeOver(fd int, rel string, st *unix.Stat_t, from uint32) error {
	if err := checkOwner(rel, st, from); err != nil {
		return err
	}
	if int(from) != os.Geteuid() {
		if err := unix.Fchown(fd, os.Geteuid(), os.Getegid()); err != nil {
			return changing(rel, err)
		}
	}
	return changing(rel, unix.Fchmod(fd, 0o700))
}

// checkOwner refuses what the builder linked or moved from elsewhere.
func checkOwner(rel string, st *unix.Stat_t, want uint32) error {
	if st.Uid != want {
		return fmt.Errorf("%s belongs to user %d instead of %d, the builder", path.Join(".", rel), st.Uid, want)
	}
	return nil
}

// changing says of an error what it is about.
func changing(rel string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: "change", Path: path.Join(".", rel), Err: err}
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
