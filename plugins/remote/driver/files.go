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
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	corelogs "github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// copyFiles copies new files in the task's directory on this node to the host: artifacts, templates, payloads and
// tokens that Nomad has written since the last copy. below is the subdirectory to copy, "." for all.
func (t *remoteTask) copyFiles(ctx context.Context, link *host.Link, below string) error {
	t.copying.Lock()
	defer t.copying.Unlock()
	now := time.Now().Round(0) // drops the monotonic clock reading, which the times of files do not have
	root, err := os.OpenRoot(filepath.Join(t.config.AllocDir, t.config.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	since := t.saved.Copied
	if now.Before(since) { // the clock was set back
		since = time.Time{}
	}
	paths, err := filesOf(root, below, since)
	if err != nil {
		return err
	}
	if len(paths) > 0 {
		request := &shim.FilesRequest{
			TaskID: t.saved.RunID, User: t.config.User, At: now.Add(-clockTick),
		}
		err = shim.Files(ctx, link.Shim, request, func(w io.Writer) error { return archive(w, root, paths) })
	}
	if err != nil {
		return fmt.Errorf("failed to copy files to endpoint %q: %s", t.saved.Endpoint,
			plain.Line(err.Error(), maxMessage))
	}
	t.saved.Copied = now.Add(-clockTick)
	return nil
}

// clockTick is how far a file's time can lag behind the clock, because the kernel uses the time of its last clock tick.
const clockTick = 10 * time.Millisecond

// refresh copies changed files before a signal or a command. If that fails, it only emits a task event, because the
// signal or the command might not need the files.
func (t *remoteTask) refresh(ctx context.Context, link *host.Link) {
	if err := t.copyFiles(ctx, link, "."); err != nil {
		t.event("The task's files on the host are out of date: %v", err)
	}
}

// filesOf returns the paths in a task's directory that belong on the host and have changed since the given time.
func filesOf(root *os.Root, below string, since time.Time) (paths []string, err error) {
	ofNode := []string{allocdir.TaskPrivate, allocdir.SharedAllocName}
	ofHost := []string{".", allocdir.TaskLocal, allocdir.TaskSecrets, allocdir.TmpDirName} // the host creates these itself
	err = fs.WalkDir(root.FS(), below, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // Nomad has just replaced a template
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains(ofNode, path) {
			return fs.SkipDir
		}
		if slices.Contains(ofHost, path) || entry.Name() == ".nomad-mount" { // Nomad's marker file in the secrets directory
			return nil
		}
		kind := entry.Type()
		if !kind.IsRegular() && kind != fs.ModeSymlink && (kind != fs.ModeDir || !since.IsZero()) {
			return nil // such as api.sock, or a directory that was copied before
		}
		info, err := entry.Info()
		if err == nil && info.ModTime().After(since) {
			paths = append(paths, path)
		}
		return nil
	})
	return paths, err
}

// archive writes the files at paths below root as a tar(5) archive. It omits files that no longer exist, because other
// tasks of the group may change the directory during the call.
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
			return cmp.Or(err, errors.New("it is no longer a regular file"))
		}
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name, header.Mode = path, header.Mode&0o777
	header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", "" // on the host, the files belong to the task's user
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	if content == nil {
		return nil
	}
	_, err = io.CopyN(out, content, header.Size)
	if errors.Is(err, io.EOF) {
		return errors.New("it was truncated while it was copied")
	}
	return err
}

// logs limits how much of a task's output this node keeps.
type logs struct {
	Off         bool  `json:"off,omitempty"`
	MaxFiles    int   `json:"max_files"`
	MaxFileSize int64 `json:"max_file_size"` // in bytes
}

func logsOf(cfg *drivers.TaskConfig, c *TaskConfig) logs {
	o := c.Logs
	if o == nil {
		o = &core.LogOptions{MaxFiles: 10, MaxFileSize: 10}
	}
	return logs{
		Off:      cfg.StdoutPath == os.DevNull && cfg.StderrPath == os.DevNull,
		MaxFiles: o.MaxFiles, MaxFileSize: int64(o.MaxFileSize) << 20,
	}
}

// output returns a request for the output that this node does not have yet.
func (t *remoteTask) output() *shim.LogsRequest {
	r := &shim.LogsRequest{TaskID: t.saved.RunID}
	r.Stdout.Number, r.Stdout.Size = corelogs.End(t.config.AllocDir, t.config.Name+".stdout")
	r.Stderr.Number, r.Stderr.Size = corelogs.End(t.config.AllocDir, t.config.Name+".stderr")
	return r
}

// copyOutput copies a task's output from the host to the same log files on this node. It returns when the task has
// ended and all output is copied, or when ctx or the connection ends.
func (t *remoteTask) copyOutput(ctx context.Context, link *host.Link) error {
	if t.saved.Logs.Off {
		return nil
	}
	var copies [2]*corelogs.Copy
	newest := t.output()
	for i, number := range []int64{newest.Stdout.Number, newest.Stderr.Number} {
		name := t.config.Name + []string{".stdout", ".stderr"}[i]
		// twice the limit, because the host begins a new file only after the end of a line
		copies[i] = corelogs.NewCopy(t.config.AllocDir, name, t.saved.Logs.MaxFiles, 2*t.saved.Logs.MaxFileSize)
		defer copies[i].Close()
		_, _ = copies[i].Write(number, nil) // create the file even without output
	}
	for reported := false; ; {
		reply, err := shim.Logs.On(ctx, link.Shim, t.output())
		if ctx.Err() != nil || err != nil && !link.Alive() {
			return nil
		}
		if err != nil || reply.Over {
			return err
		}
		for i, part := range []shim.LogsPart{reply.Stdout, reply.Stderr} {
			if len(part.Data) > 0 && err == nil {
				_, err = copies[i].Write(part.Number, part.Data)
			}
		}
		if err == nil {
			t.copied.Add(1)
			continue
		}
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			return err
		}
		if !reported {
			t.event("The output stays on the host until this node has space: %v", err)
		}
		reported = true
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}
