// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sealing gives a tree to this process's user, and makes it read-only. While it does so, a process of the builder may
// still change the tree, for example through an open directory. So sealing takes over each directory before it reads
// the entries: from then on, nobody else can replace them, and paths through the directory are stable. A process that
// still has a file open can write to it, but that changes the file's times, which the next Get detects.
type sealing struct {
	dir    string
	from   uint32 // the builder, the owner until now
	python string // the new target of links to the interpreter
}

// seal takes over the tree that was built in dir, and returns its final state. The parent of dir must belong to this
// process's user. python is the path of the interpreter.
func (s *store) seal(dir, python string) (tree, error) {
	t := &sealing{dir: dir, from: uint32(os.Geteuid()), python: python}
	if s.builder != nil {
		t.from = s.builder.Uid
	}
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info() // stable: the parent directory was taken over before
		if err != nil {
			return err
		}
		if path == dir && !info.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
		switch info.Mode().Type() {
		case fs.ModeDir:
			dirs = append(dirs, path)
			if err := t.take(path, info); err != nil {
				return err
			}
			return os.Chmod(path, 0o700) //nolint:gosec // taken over by now, as is its parent
		case 0:
			return t.file(path, info)
		case fs.ModeSymlink:
			return t.link(path, info)
		}
		return fmt.Errorf("%s is neither a file, a directory nor a link", t.rel(path))
	})
	for _, d := range dirs {
		if err == nil {
			err = os.Chmod(d, 0o555)
		}
	}
	if err != nil {
		return tree{}, err
	}
	return measure(dir)
}

func (s *sealing) rel(path string) string { return "." + strings.TrimPrefix(path, s.dir) }

// take gives a file of the builder to this process's user. It refuses files of others that the builder linked or moved.
func (s *sealing) take(path string, info fs.FileInfo) error {
	if owner(info) != s.from {
		return fmt.Errorf("%s belongs to user %d instead of the builder (user %d)", s.rel(path), owner(info), s.from)
	}
	return os.Lchown(path, os.Geteuid(), os.Getegid())
}

func (s *sealing) file(path string, info fs.FileInfo) error {
	if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		return fmt.Errorf("%s would run as another user (set-user-ID or set-group-ID)", s.rel(path))
	}
	if err := s.take(path, info); err != nil {
		return err
	}
	if info.Sys().(*syscall.Stat_t).Nlink > 1 {
		return fmt.Errorf("%s has more than one hard link", s.rel(path))
	}
	mode := fs.FileMode(0o444)
	if info.Mode()&0o111 != 0 {
		mode = 0o555
	}
	return os.Chmod(path, mode)
}

// interpreterName matches the names of links to the interpreter in bin.
var interpreterName = regexp.MustCompile(`^(?:python|pypy)[0-9.]*t?$`)

// link accepts a relative link that stays inside of the tree. It makes a link to the interpreter lead there directly:
// the builder's link could lead through links of other users or /proc/PID, which may change later.
func (s *sealing) link(path string, info fs.FileInfo) error {
	target, err := os.Readlink(path)
	if err != nil {
		return err
	}
	clean := !filepath.IsAbs(target) && target == filepath.Clean(target) // not "x/../y", which leads out if x is a link
	if clean && filepath.IsLocal(filepath.Join(filepath.Dir(s.rel(path)), target)) {
		return s.take(path, info)
	}
	toPython := filepath.Dir(path) == filepath.Join(s.dir, "bin") && interpreterName.MatchString(filepath.Base(path))
	if !filepath.IsAbs(target) || !toPython {
		return fmt.Errorf("%s is a link to %s, outside the environment", s.rel(path), target)
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Symlink(s.python, path)
}

// tree is the state of a directory, without the contents of its files.
type tree struct {
	// Digest covers name, mode, owner, size, inode, mtime, ctime and link target of each entry. It changes with every
	// change of a file, because no process can set a file's ctime.
	Digest string `json:"digest"`
	Files  int    `json:"files"`
	Size   int64  `json:"size"` // bytes, as Environment.Size
}

// measure returns the state of a sealed directory, which nobody else can change concurrently. It follows no links.
func measure(dir string) (tree, error) {
	var t tree
	digest := sha256.New()
	if err := t.add(dir, digest); err != nil {
		return tree{}, fmt.Errorf("failed to measure %s: %w", dir, err)
	}
	t.Digest = hex.EncodeToString(digest.Sum(nil))
	return t, nil
}

// add adds all entries below a directory, and then the directory itself.
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
		t.Size += (st.Size + 4095) / 4096 * 4096 // not st.Blocks, which ZFS sets some time after the write
	}
	return nil
}
