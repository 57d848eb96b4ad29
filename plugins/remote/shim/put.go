// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The limits of a Put.
const (
	mostFilesPut = 1 << 20
	mostBytesPut = 1 << 40
)

// put is endpoint.Endpoint's Put. The lock is not held while it reads, which may take as long as the
// network does, but when something gets its name: a late one changes nothing of the next owner.
func (s *Shim) put(ctx context.Context, ref endpoint.Ref, files io.Reader) error {
	l, err := s.owned(ctx, ref)
	if err != nil {
		return err
	}
	st, err := s.taskState(l)
	d := s.dirs(l.o)
	l.unlock()
	if err != nil {
		return fmt.Errorf("%w: %w", endpoint.ErrUnprepared, err)
	}
	u := &unpacker{
		user: st.Command.User, roots: map[string]*os.Root{},
		in:  map[string]string{"local": d.task, "secrets": d.task, "data": d.alloc},
		own: func() (*locked, error) { return s.owned(ctx, ref) },
	}
	defer u.close()
	for t := tar.NewReader(files); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, io.LimitReader(files, 1<<20)) // the padding of the stream
			return err
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = u.unpack(h, t)
		}
		if err != nil {
			return fmt.Errorf("failed to copy the task's files to the host: %w", err)
		}
	}
}

// unpacker unpacks below directories that it holds. The task may change what is in them
// meanwhile: an os.Root is not led out by a link, and what is in it is the task's anyway.
type unpacker struct {
	user  *task.User              // of the files, nil for this process's
	in    map[string]string       // where local/, secrets/ and data/ are
	roots map[string]*os.Root     // those that were needed
	own   func() (*locked, error) // locks the object, if it still is the caller's
	count int
	bytes int64
}

func (u *unpacker) close() {
	for _, r := range u.roots {
		if r != nil {
			r.Close()
		}
	}
}

// root opens one of the directories that are copied, and makes it if the task has removed it. Each is a root of its
// own, since beside data/ are logs/.
func (u *unpacker) root(name string) (*os.Root, error) {
	if r := u.roots[name]; r != nil {
		return r, nil
	}
	parent, err := os.OpenRoot(u.in[name])
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := u.dir(parent, name, 0o700); err != nil {
		return nil, err
	}
	root, err := parent.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	u.roots[name] = root
	return root, u.removeTemps(root)
}

// tempPrefix is what the names of files begin with that have not got theirs. They are at the top of a root.
const tempPrefix = ".outrider-put-"

// removeTemps removes what a shim has left that was killed amid a file. An owner makes one call at a time.
func (u *unpacker) removeTemps(root *os.Root) error {
	l, err := u.own()
	if err != nil {
		return err
	}
	defer l.unlock()
	top, err := root.Open(".")
	if err != nil {
		return err
	}
	defer top.Close()
	names, err := top.Readdirnames(-1)
	for _, name := range names {
		if strings.HasPrefix(name, tempPrefix) {
			_ = root.Remove(name)
		}
	}
	return err
}

func (u *unpacker) unpack(h *tar.Header, from io.Reader) error {
	top, name, _ := strings.Cut(path.Clean(h.Name), "/")
	if u.in[top] == "" || name == "" || !filepath.IsLocal(name) || len(name) > unix.PathMax {
		return fmt.Errorf("%q is not below local/, secrets/ or data/", h.Name)
	}
	root, err := u.root(top)
	if err != nil {
		return err
	}
	u.bytes += max(0, h.Size)
	if u.count++; u.count > mostFilesPut || u.bytes > mostBytesPut {
		return fmt.Errorf("there are more than %d files, or %d TiB", mostFilesPut, mostBytesPut>>40)
	}
	mode := fs.FileMode(h.Mode) & 0o777
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(root, name, mode|0o700)
	case tar.TypeReg:
		return u.replace(root, name, func(temp string) error { return u.file(root, temp, mode, from) })
	case tar.TypeSymlink:
		// it stays this process's: by its name it could be another file by now, and who owns a link means nothing
		return u.replace(root, name, func(temp string) error { return root.Symlink(h.Linkname, temp) })
	}
	return fmt.Errorf("%q is neither a file, a directory nor a symbolic link", h.Name)
}

// replace makes a file elsewhere, and puts it in its place as a whole.
func (u *unpacker) replace(root *os.Root, name string, write func(temp string) error) error {
	if dir := path.Dir(name); dir != "." {
		if err := u.parents(root, dir); err != nil {
			return err
		}
	}
	temp := tempPrefix + rand.Text()
	err := write(temp)
	if err == nil {
		err = u.rename(root, temp, name)
	}
	if err != nil {
		_ = root.Remove(temp)
	}
	return err
}

func (u *unpacker) rename(root *os.Root, temp, name string) error {
	l, err := u.own()
	if err != nil {
		return err
	}
	defer l.unlock()
	err = root.Rename(temp, name)
	if errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("%q is in a file system that the task has mounted", path.Join(path.Base(root.Name()), name))
	}
	if errors.Is(err, unix.EISDIR) || errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("there is a directory at %q, where a file is to be", path.Join(path.Base(root.Name()), name))
	}
	return err
}

func (u *unpacker) file(root *os.Root, temp string, mode fs.FileMode, from io.Reader) error {
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	if err == nil {
		err = u.give(f, mode)
	}
	return errors.Join(err, f.Close())
}

// give gives an open file to the task. It is not done by name, since the task may put another
// file there.
func (u *unpacker) give(f *os.File, mode fs.FileMode) error {
	if u.user != nil {
		if err := f.Chown(int(u.user.UID), int(u.user.GID)); err != nil {
			return err
		}
	}
	return f.Chmod(mode)
}

func (u *unpacker) parents(root *os.Root, dir string) error {
	if info, err := root.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if up := path.Dir(dir); up != "." {
		if err := u.parents(root, up); err != nil {
			return err
		}
	}
	return u.dir(root, dir, 0o755)
}

// dir makes a directory, or takes one that is there as it is: those of the task have their mode.
func (u *unpacker) dir(root *os.Root, name string, mode fs.FileMode) error {
	if up := path.Dir(name); up != "." && up != name {
		if err := u.parents(root, up); err != nil {
			return err
		}
	}
	_, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = u.makeDir(root, name, mode)
	} else if err == nil {
		err = fs.ErrExist
	}
	if errors.Is(err, fs.ErrExist) {
		if info, err := root.Stat(name); err == nil && !info.IsDir() {
			return fmt.Errorf("there is a file at %q, where a directory is to be", path.Join(path.Base(root.Name()), name))
		}
		return nil
	}
	return err
}

func (u *unpacker) makeDir(root *os.Root, name string, mode fs.FileMode) error {
	l, err := u.own()
	if err != nil {
		return err
	}
	defer l.unlock()
	if err := root.Mkdir(name, 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(name, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(u.give(f, mode), f.Close())
}
