// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/nomad/client/allocdir"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// copyFiles copies to the host what Nomad has put into the task's directory on this node since the last copy:
// artifacts, templates, payloads, tokens. below is the directory in it that is copied, "." for all. It returns how many
// files it has copied.
func (t *remoteTask) copyFiles(ctx context.Context, link *host.Link, below string) (int, error) {
	t.copying.Lock()
	defer t.copying.Unlock()
	begun := time.Now()
	root, err := os.OpenRoot(filepath.Join(t.config.AllocDir, t.config.Name))
	if err != nil {
		return 0, err
	}
	defer root.Close()
	paths, err := filesOf(root, below, t.saved.Copied)
	if err != nil {
		return 0, err
	}
	if len(paths) > 0 {
		request := &shim.FilesRequest{
			TaskID: t.saved.Run.TaskID, AllocID: t.saved.Run.AllocID, Task: t.config.Name, User: t.config.User,
			Owner: t.owner(),
		}
		err = link.Shim.Files(ctx, request, func(w io.Writer) error { return archive(w, root, paths) })
	}
	if err != nil {
		return 0, fmt.Errorf("failed to copy files to endpoint %q: %s", t.saved.Endpoint,
			plain.Line(err.Error(), mostOfReason))
	}
	t.saved.Copied = begun.Add(-time.Second) // a file's time is that of the last tick of the kernel's clock
	return len(paths), nil
}

// filesOf returns the paths of a task's directory that are for the host, and newer than a time.
func filesOf(root *os.Root, below string, since time.Time) (paths []string, err error) {
	ofNode := []string{allocdir.TaskPrivate, allocdir.TmpDirName, allocdir.SharedAllocName}
	err = fs.WalkDir(root.FS(), below, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // a template was replaced meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains(ofNode, path) {
			return fs.SkipDir
		}
		if path == "." || path == allocdir.TaskLocal || path == allocdir.TaskSecrets || entry.Name() == ".nomad-mount" {
			return nil // the host has its own
		}
		switch kind := entry.Type(); {
		case kind.IsRegular(), kind == fs.ModeSymlink, kind == fs.ModeDir && since.IsZero():
		default:
			return nil // such as api.sock, and a directory that the host has by now
		}
		info, err := entry.Info()
		if err == nil && info.ModTime().After(since) {
			paths = append(paths, path)
		}
		return nil
	})
	return paths, err
}

// archive writes files of a directory in the format of tar(5). Other tasks of the group may change them at any time.
func archive(w io.Writer, root *os.Root, paths []string) error {
	out := tar.NewWriter(w)
	for _, path := range paths {
		if err := add(out, root, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("failed to read %s: %w", path, err)
		}
	}
	return out.Close()
}

func add(out *tar.Writer, root *os.Root, path string) error {
	info, err := root.Lstat(path)
	if err != nil {
		return err
	}
	link := ""
	var content *os.File
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		link, err = root.Readlink(path)
	case info.Mode().IsRegular():
		content, err = root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return err
	}
	if content != nil {
		defer content.Close()
		info, err = content.Stat()
		if err != nil || !info.Mode().IsRegular() {
			return cmp.Or(err, errors.New("it is no file any more"))
		}
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name, header.Mode = path, header.Mode&0o777
	header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", "" // the files become the task's user's
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	if content == nil {
		return nil
	}
	_, err = io.CopyN(out, content, header.Size)
	return err
}
