// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openLogDir opens <alloc dir>/alloc/logs. Tasks can replace the last two directories, so neither may be a symbolic
// link.
func openLogDir(allocDir string) (int, error) {
	const flags = unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := retry(func() (int, error) { return unix.Open(allocDir, flags|unix.O_PATH, 0) })
	path := allocDir
	for _, name := range []string{"alloc", "logs"} {
		if err != nil {
			break
		}
		parent := fd
		path = filepath.Join(path, name)
		fd, err = retry(func() (int, error) { return unix.Openat(parent, name, flags|unix.O_RDONLY|unix.O_NOFOLLOW, 0) })
		unix.Close(parent)
	}
	if err != nil {
		return -1, fmt.Errorf("failed to open log directory: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	return fd, nil
}

// files represents the rotated files <name>.0, <name>.1, … in one directory. Output is written to the newest file.
// Tasks can write to the directory (Nomad makes it 0777), so no file in it is trusted. The descriptors stay open:
// output continues after a task has renamed the directory.
type files struct {
	allocDir string
	name     string // "web.stdout"
	max      int    // the number of files to keep

	device uint64 // st_dev of the directory; 0 before the first open

	dir   int // -1: not open
	file  int // -1: not open
	index int64
	known []int64 // indexes of all files, ascending
}

// open opens the newest file for appending, or makes the first one.
func (f *files) open() error {
	dir, err := openLogDir(f.allocDir)
	if err != nil {
		return err
	}
	known, err := list(dir, f.name)
	if err != nil {
		unix.Close(dir)
		return fmt.Errorf("failed to list log directory: %w", err)
	}
	first := int64(0)
	if len(known) > 0 {
		first = known[len(known)-1]
	}
	fd, index, err := openFrom(dir, f.name, first)
	if err != nil {
		unix.Close(dir)
		return err
	}
	f.close()
	f.dir, f.known, f.device = dir, known, deviceOf(dir)
	f.use(fd, index)
	return nil
}

// next switches to a new file, and removes surplus files with the lowest indexes. After an error the old file is still
// open.
func (f *files) next() error {
	fd, index, err := openFrom(f.dir, f.name, f.index+1)
	if err != nil {
		if exists(f.dir) {
			return err
		}
		return f.open() // the directory was removed and may have been replaced
	}
	unix.Close(f.file)
	f.use(fd, index)
	return nil
}

func (f *files) use(fd int, index int64) {
	f.file, f.index = fd, index
	if i, found := slices.BinarySearch(f.known, index); !found {
		f.known = slices.Insert(f.known, i, index)
	}
	for range min(len(f.known)-f.max, 64) { // bounded, since a task may have planted any number of files
		unix.Unlinkat(f.dir, f.path(f.known[0]), 0) // best effort; the file may be gone already
		f.known = f.known[1:]
	}
}

func deviceOf(fd int) uint64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Dev
}

func (f *files) path(index int64) string { return fileName(f.name, index) }

// close closes the directory and the current file. It returns the error of the file, since NFS reports a full disk only
// when a file is closed.
func (f *files) close() error {
	var err error
	if f.file >= 0 {
		err = unix.Close(f.file)
	}
	if f.dir >= 0 {
		unix.Close(f.dir)
	}
	f.file, f.dir = -1, -1
	return err
}

// openFrom opens the file with this index or a higher one. It uses an existing file only if it is certainly a log: a
// regular file of this user without a second hard link. It skips any other regular file, and directories, which Nomad's
// readers skip too. It removes files of other types (symbolic links, FIFOs, devices).
func openFrom(dir int, name string, index int64) (fd int, at int64, err error) {
	// the step doubles, so planted names cannot keep the loop busy
	for step, try := int64(1), 0; try < 48; try++ {
		path := fileName(name, index)
		if fd, err = openFile(dir, path, unix.O_RDWR|unix.O_CREAT); err == nil {
			return fd, index, nil
		}
		if err == errMakeWay {
			if err = unix.Unlinkat(dir, path, 0); err == nil || err == unix.ENOENT {
				continue
			}
			err = errSkip
		}
		switch err {
		case errSkip:
			index += step
			step *= 2
			continue
		case unix.EEXIST, unix.ENOENT, unix.ELOOP, unix.ENXIO: // the file was removed or replaced after the stat in openFile
			if exists(dir) {
				continue
			}
		}
		return -1, 0, fmt.Errorf("failed to open log file: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	return -1, 0, fmt.Errorf("failed to open log file: found no free name %s.NUMBER", name)
}

// exists reports whether an open directory still exists in the file system.
func exists(dir int) bool {
	var st unix.Stat_t
	return unix.Fstat(dir, &st) == nil && st.Nlink > 0
}

var (
	errMakeWay = errors.New("not a file")
	errSkip    = errors.New("not a log file")
)

// openFile opens one file. how is unix.O_RDONLY, or unix.O_RDWR|unix.O_CREAT. It can't include O_APPEND, which
// splice(2) refuses.
func openFile(dir int, path string, how int) (int, error) {
	// because of O_NONBLOCK, the open does not wait for a FIFO, or for another process's lease (fcntl(2))
	flags := how&^unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	var st unix.Stat_t
	err := unix.Fstatat(dir, path, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT && how&unix.O_CREAT != 0 {
		return retry(func() (int, error) { return unix.Openat(dir, path, flags|unix.O_CREAT|unix.O_EXCL, 0o644) })
	}
	if err == nil {
		err = checkFile(&st)
	}
	if err != nil {
		return -1, err
	}
	fd, err := retry(func() (int, error) { return unix.Openat(dir, path, flags, 0) })
	if err == unix.EAGAIN {
		err = errSkip
	}
	if err != nil {
		return -1, err
	}
	if err = unix.Fstat(fd, &st); err == nil {
		err = checkFile(&st)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func checkFile(st *unix.Stat_t) error {
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return errSkip
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errMakeWay
	case st.Nlink != 1 || int(st.Uid) != unix.Geteuid():
		return errSkip
	}
	return nil
}

func fileName(name string, index int64) string { return name + "." + strconv.FormatInt(index, 10) }

// maxListed bounds the number of entries that are read from a log directory. A task may have made any number of them,
// and one process lists the directories of all tasks.
const maxListed = 10_000

// list returns the indexes of a stream's files in ascending order. It accepts the same file names as Nomad's client
// (client/fs_endpoint.go, logIndexes), and reads only the first maxListed entries.
func list(dir int, name string) ([]int64, error) {
	fd, err := retry(func() (int, error) { // reopens dir: the new descriptor has its own directory offset
		return unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(fd), "alloc/logs")
	defer d.Close()
	return listed(d, name)
}

func listed(d *os.File, name string) ([]int64, error) {
	var found []int64
	for looked := 0; looked < maxListed; {
		entries, err := d.ReadDir(min(1000, maxListed-looked))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		looked += len(entries)
		found = append(found, indexes(entries, name)...)
	}
	slices.Sort(found)
	return found, nil
}

// End returns the end of a stream, such as "web.stderr": the number and the size in bytes of the newest file, or zeros
// without a file. It opens only the directory.
func End(allocDir, name string) (index, size int64) {
	dir, err := openLogDir(allocDir)
	if err != nil {
		return 0, 0
	}
	defer unix.Close(dir)
	known, err := list(dir, name)
	if err != nil || len(known) == 0 {
		return 0, 0
	}
	index = known[len(known)-1]
	var st unix.Stat_t
	if unix.Fstatat(dir, fileName(name, index), &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0, 0
	}
	return index, st.Size
}

func indexes(entries []os.DirEntry, name string) (found []int64) {
	for _, e := range entries {
		suffix, ok := strings.CutPrefix(e.Name(), name+".")
		if !ok || e.IsDir() || len(suffix) > 15 { // no log reaches such an index, and the next index must not overflow
			continue
		}
		if n, err := strconv.ParseInt(suffix, 10, 64); err == nil && fileName(name, n) == e.Name() && n >= 0 {
			found = append(found, n)
		}
	}
	return found
}
