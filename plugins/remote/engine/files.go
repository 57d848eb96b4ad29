// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// What is copied to an endpoint at most, at a time.
const (
	maxCopied = 2 << 30 // bytes
	maxFiles  = 100_000 // files, directories and links
)

// taskDirs are the directories whose files are copied: local/ and secrets/ of the task, and data/
// that the group's tasks share. The task itself does not run on this node, but others of its group
// may, and change what they can write to at any moment: nothing here follows a link.
type taskDirs struct {
	AllocDir string `json:"alloc_dir"`
	Task     string `json:"task"`

	// Copied is when the start began to copy them: another process of the plugin copies again what has
	// changed since.
	Copied time.Time `json:"copied"`
}

// copiedDirs are by their names on the endpoint.
var copiedDirs = []string{"local", "secrets", "data"}

// open returns one of copiedDirs, fs.ErrNotExist if it is not there.
func (d taskDirs) open(name string) (*os.Root, error) {
	steps := []string{d.Task, name}
	if name == "data" {
		steps[0] = "alloc"
	}
	const flags = unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_PATH
	fd, err := unix.Open(d.AllocDir, flags, 0)
	for _, step := range steps {
		if err != nil {
			break
		}
		parent := fd
		fd, err = unix.Openat(parent, step, flags|unix.O_NOFOLLOW, 0)
		_ = unix.Close(parent)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	return os.OpenRoot("/proc/self/fd/" + strconv.Itoa(fd)) // the directory that is open, whatever has its name now
}

// entry is a file, directory or link that is copied.
type entry struct {
	name string // below the copied directories: "local/bin/run"
	info fs.FileInfo
	link string // the target, relative and inside of the directory
	root *os.Root
}

// walk calls f for everything that is copied of a directory, in lexical order, until f returns an error, which may be
// fs.SkipAll. What is none of a file, directory and link (such as the socket api.sock) is left out, and so is a link
// that leads out of the directory. More than maxFiles names are an error, before they are all in memory: fs.WalkDir
// would read a whole directory of them.
func (d taskDirs) walk(ctx context.Context, top string, f func(e entry) error) error {
	root, err := d.open(top)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	left := maxFiles
	var walk func(dir string) error
	walk = func(dir string) error {
		names, err := namesIn(root, dir, left)
		left -= len(names)
		for _, name := range names {
			p := path.Join(dir, name)
			if err == nil {
				err = ctx.Err()
			}
			if err == nil && !(top == "secrets" && p == nomadsMark) {
				err = see(root, top, p, f, walk)
			}
		}
		return err
	}
	if err = walk("."); errors.Is(err, fs.SkipAll) {
		return nil
	}
	return err
}

// namesIn returns the names in a directory, sorted, none if it is not one any more. More than most are errTooMuch.
func namesIn(root *os.Root, dir string, most int) ([]string, error) {
	d, err := root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(most + 1)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if len(names) > most {
		return nil, errTooMuch
	}
	slices.Sort(names)
	return names, err
}

// see calls f for what is at a path, and walk for a directory.
func see(root *os.Root, top, p string, f func(entry) error, walk func(dir string) error) error {
	e := entry{name: path.Join(top, p), root: root}
	var err error
	e.info, err = root.Lstat(p)
	if err == nil && e.info.Mode()&fs.ModeSymlink != 0 {
		if e.link, err = root.Readlink(p); err == nil && !inside(p, e.link) {
			return nil
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // removed since it was listed
		return nil
	case err != nil:
		return err
	case e.info.Mode().IsRegular(), e.link != "":
		return f(e)
	case e.info.IsDir():
		if err := f(e); err != nil {
			return err
		}
		return walk(p)
	}
	return nil
}

// walkAll is walk for each of copiedDirs. It ends with the first error.
func (d taskDirs) walkAll(ctx context.Context, f func(e entry) error) error {
	for _, top := range copiedDirs {
		if err := d.walk(ctx, top, f); err != nil {
			return err
		}
	}
	return nil
}

// nomadsMark is a file by which Nomad knows that it has mounted secrets/.
const nomadsMark = ".nomad-mount"

// inside reports whether the target of a link at p leads to nothing but what is in its directory.
func inside(p, target string) bool {
	return !path.IsAbs(target) && filepath.IsLocal(path.Join(path.Dir(p), target))
}

// stamp identifies what is at a name as it is now, without reading it.
func (e entry) stamp() uint64 {
	st := e.info.Sys().(*syscall.Stat_t)
	return maphash.Comparable(stamps, [6]any{
		e.name, st.Ino, st.Size, st.Mode, st.Mtim, st.Ctim,
	})
}

// changed is when an entry was changed last, in any way, by the node's clock.
func (e entry) changed() time.Time {
	st := e.info.Sys().(*syscall.Stat_t)
	return time.Unix(st.Ctim.Unix())
}

var stamps = maphash.MakeSeed()

// open opens a file for reading.
func (e entry) open() (*os.File, fs.FileInfo, error) {
	_, p, _ := strings.Cut(e.name, "/")
	f, err := e.root.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0) // a fifo may be there by now
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", e.name, errChanged)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

var errChanged = errors.New("it was changed while it was read")

// pack writes an entry to an archive. Of its attributes the permissions and the time are kept: the
// owner on the endpoint is the task's. It returns the size of a file, which is an error above most.
func (e entry) pack(w *tar.Writer, most int64) (int64, error) {
	h := &tar.Header{
		Name: e.name, Mode: int64(e.info.Mode().Perm()), ModTime: e.info.ModTime(), Format: tar.FormatPAX,
	}
	switch {
	case e.info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, e.name+"/"
		return 0, w.WriteHeader(h)
	case e.link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		return 0, w.WriteHeader(h)
	}
	f, info, err := e.open()
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if h.Size > most {
		return 0, errTooMuch
	}
	if err := w.WriteHeader(h); err != nil {
		return 0, err
	}
	n, err := io.CopyN(w, f, h.Size) // what is added meanwhile is left for the next time
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s: %w", e.name, errChanged)
	}
	return n, err
}

// digest is that of local/, part of what distinguishes one object of a task from another: artifacts,
// templates and a dispatch payload are there. secrets/ does not count, since tokens and leases differ
// at each allocation; nor does data/, which belongs to the allocation. What is rendered again while the
// task runs makes no other object of it: where it was copied, the record has the new digest
// (Mutable.Files), and the next node compares its own with that.
func (d taskDirs) digest(ctx context.Context) (sum string, err error) {
	for range 3 { // a template is rendered to a file of another name first
		if sum, err = d.digestOnce(ctx); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errChanged) {
			break
		}
	}
	if err != nil {
		return "", fmt.Errorf("failed to read the task's files: %w", err)
	}
	return sum, nil
}

func (d taskDirs) digestOnce(ctx context.Context) (string, error) {
	sum, size := sha256.New(), int64(0)
	err := d.walk(ctx, "local", func(e entry) error {
		fmt.Fprintf(sum, "%q %v %q\n", e.name, e.info.Mode().Type()|e.info.Mode()&0o111, e.link)
		if !e.info.Mode().IsRegular() {
			return nil
		}
		if size += e.info.Size(); size > maxCopied { // it could not be copied: no need to read it for minutes
			return errTooMuch
		}
		f, _, err := e.open()
		if err != nil {
			return err
		}
		defer f.Close()
		one := sha256.New()
		if _, err = io.Copy(one, f); err == nil {
			_, err = sum.Write(one.Sum(nil))
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// copier copies a task's files, and remembers what it has copied. The zero value has copied nothing.
type copier struct {
	mu     sync.Mutex // held during a copy
	copied map[uint64]struct{}
}

// copy has put read an archive of the files, or only of those that have changed since they were copied:
// put is not called if none has.
func (c *copier) copy(ctx context.Context, d taskDirs, changed bool, put func(archive io.Reader) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for range 3 {
		if err = c.once(ctx, d, changed, put); !errors.Is(err, errChanged) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("failed to copy the task's files: %w", err)
	}
	return nil
}

func (c *copier) once(ctx context.Context, d taskDirs, changed bool, put func(io.Reader) error) error {
	now, err := d.stamps(ctx)
	if err != nil {
		return err
	}
	wanted := func(e entry) bool {
		_, copied := c.copied[e.stamp()]
		if c.copied == nil && !d.Copied.IsZero() {
			copied = e.changed().Before(d.Copied.Add(-time.Second)) // the kernel's clock of files is a coarse one
		}
		return !changed || !copied
	}
	if changed {
		found := false
		err := d.walkAll(ctx, func(e entry) error {
			if found = found || wanted(e); found {
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !found {
			c.copied = now
			return nil
		}
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		archive := tar.NewWriter(w)
		files, bytes := 0, int64(0) // they may have become more since they were counted
		var above []entry           // directories that are sent with what is in them, for their modes
		err := d.walkAll(ctx, func(e entry) error {
			above = slices.DeleteFunc(above, func(dir entry) bool { return !strings.HasPrefix(e.name, dir.name+"/") })
			above = append(above, e)
			if !wanted(e) {
				if !e.info.IsDir() {
					above = above[:len(above)-1]
				}
				return nil
			}
			for _, e := range above {
				if files++; files > maxFiles {
					return errTooMuch
				}
				size, err := e.pack(archive, maxCopied-bytes)
				if err != nil {
					return err
				}
				bytes += size
			}
			above = above[:0]
			return nil
		})
		if err == nil {
			err = archive.Close()
		}
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err = put(r)
	r.CloseWithError(errors.New("the endpoint reads no more"))
	if perr := <-packed; err != nil && errors.Is(perr, errChanged) {
		return perr // the endpoint does not know why the archive ended
	}
	if err != nil {
		return err
	}
	c.copied = now
	return nil
}

var errTooMuch = fmt.Errorf("there are more than %d files or %d GiB in local/, secrets/ and alloc/data/: "+
	"have the task fetch large data itself", maxFiles, maxCopied>>30)

// stamps are those of all that is copied. It is an error if that is too much.
func (d taskDirs) stamps(ctx context.Context) (map[uint64]struct{}, error) {
	all, size := map[uint64]struct{}{}, int64(0)
	err := d.walkAll(ctx, func(e entry) error {
		all[e.stamp()] = struct{}{}
		if e.info.Mode().IsRegular() {
			size += e.info.Size()
		}
		if len(all) > maxFiles || size > maxCopied {
			return errTooMuch
		}
		return nil
	})
	return all, err
}

// put copies all files to an object, at its start and when it is taken over.
func (t *remoteTask) put(ctx context.Context, ref endpoint.Ref) error {
	begun := time.Now()
	err := t.files.copy(ctx, t.saved.Dirs, false, func(r io.Reader) error { return t.ep.Put(ctx, ref, r) })
	if err == nil {
		t.saved.Dirs.Copied = begun
	}
	return err
}

// putChanged copies files that have changed since they were copied: before a signal or a command, for templates
// with change_mode "signal" or "script", and before the object is released, for those with "noop".
func (t *remoteTask) putChanged(ctx context.Context, ref endpoint.Ref) error {
	return t.files.copy(ctx, t.saved.Dirs, true, func(r io.Reader) error {
		if err := t.ep.Put(ctx, ref, r); err != nil {
			return err
		}
		files, err := t.saved.Dirs.digest(ctx)
		if err != nil {
			return err
		}
		return t.ep.Renew(ctx, ref, endpoint.Mutable{Files: files})
	})
}
