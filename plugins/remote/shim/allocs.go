// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/plugins/drivers"

	corelogs "github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/plain"
)

// allocs manages the directories of allocations in dir, with the same layout as on a node (Nomad's client/allocdir).
// dir and the directory of each allocation belong to the plugin's user; the files below belong to tasks.
type allocs struct{ dir string }

// AllocDir returns the directory of an allocation on a host whose directory is dir.
func AllocDir(dir, allocID string) string { return filepath.Join(dir, "allocs", allocID) }

func (a allocs) path(id string) (string, error) {
	if !isName(id) || strings.Contains(id, ".") {
		return "", fmt.Errorf("%q is not the id of an allocation", id)
	}
	return filepath.Join(a.dir, id), nil
}

// isName reports whether a text from another machine is a valid file name, and not hidden.
func isName(text string) bool {
	return text != "" && !strings.HasPrefix(text, ".") && !strings.ContainsAny(text, "/\x00")
}

// make creates missing directories of a task, owned by uid and gid, and returns the allocation's directory.
func (a allocs) make(id, task string, uid, gid int) (string, error) {
	if !isName(task) || task == allocdir.SharedAllocName {
		return "", fmt.Errorf("%q can't be the name of a task on this host", task)
	}
	dir, err := a.share(id)
	if err != nil {
		return "", err
	}
	own := []string{allocdir.TaskLocal, allocdir.TaskSecrets, allocdir.TmpDirName}
	return dir, makeTree(dir, task, own, uid, gid, 0o700)
}

// share creates missing directories that all tasks of an allocation share, and returns the allocation's directory.
func (a allocs) share(id string) (string, error) {
	dir, err := a.path(id)
	if err != nil {
		return "", err
	}
	f, err := owndir.Make(dir, 0o711)
	if err != nil {
		return "", fmt.Errorf("failed to make the allocation's directory: %w", err)
	}
	f.Close()
	shared := []string{allocdir.SharedDataDir, allocdir.LogDirName, allocdir.TmpDirName}
	return dir, makeTree(dir, allocdir.SharedAllocName, shared, os.Geteuid(), os.Getegid(), 0o777)
}

// resume makes the next output of a task go to a file with a higher number, if the node has more output than this host,
// as after a takeover. In the old file, the node would only read what is beyond the size that it has, and so miss
// output. This still happens if the new file cannot be created, as on a full disk.
func (a allocs) resume(taskID string, has LogsRequest) {
	id, task := partsOf(taskID)
	for stream, newest := range map[string]LogsPart{".stdout": has.Stdout, ".stderr": has.Stderr} {
		dir, _ := a.path(id)
		number, size := corelogs.End(dir, task+stream)
		if number > newest.Number || number == newest.Number && size >= newest.Size {
			continue
		}
		_, err := a.share(id)
		if err == nil {
			next := corelogs.NewCopy(dir, task+stream, math.MaxInt, 0)
			_, _ = next.Write(newest.Number+1, nil)
			_ = next.Close()
		}
	}
}

// makeTree creates a directory with subdirectories, unless the directory exists. It renames the complete tree into
// place, so it never touches a directory that a task may have changed.
func makeTree(parent, name string, below []string, uid, gid int, mode fs.FileMode) error {
	dir := filepath.Join(parent, name)
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	made, err := os.MkdirTemp(parent, ".new-")
	if err != nil {
		return err
	}
	for _, sub := range append(below, ".") {
		path := filepath.Join(made, sub)
		err = errors.Join(err, os.MkdirAll(path, mode), os.Chmod(path, mode), os.Lchown(path, uid, gid))
	}
	if err == nil {
		err = os.Rename(made, dir)
	}
	if err != nil {
		_ = os.RemoveAll(made)
	}
	if _, there := os.Lstat(dir); there == nil { // another task of the group was faster
		return nil
	}
	return err
}

// copied returns the path of the file that records the time of the last copy of a task's files. The file is in the
// allocation's directory. Its name begins with a dot, so it is not the name of a task.
func (a allocs) copied(taskID string) (file string, err error) {
	id, task := partsOf(taskID)
	dir, err := a.path(id)
	if err == nil && !isName(task) {
		err = fmt.Errorf("%q is not the name of a task", task)
	}
	return filepath.Join(dir, ".copied-"+task), err
}

// removed is the prefix for an allocation's directory that is being removed.
const removed = ".removed-"

// retire renames the directories of allocations that are not in the map inUse and have not changed since the given
// time. It returns their new paths, and those of earlier calls, for the caller to remove. The caller must hold the lock
// of all records, so no other directory comes into use during the call.
func (a allocs) retire(inUse map[string]bool, since time.Time) (paths []string, err error) {
	entries, err := os.ReadDir(a.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		path := filepath.Join(a.dir, e.Name())
		if !strings.HasPrefix(e.Name(), removed) {
			info, statErr := e.Info()
			if statErr != nil || inUse[e.Name()] || info.ModTime().After(since) {
				continue
			}
			path = filepath.Join(a.dir, removed+e.Name())
			err = errors.Join(err, os.Rename(filepath.Join(a.dir, e.Name()), path))
		}
		paths = append(paths, path)
	}
	return paths, err
}

// used marks an allocation's directory as changed now, so retire keeps it for some time.
func (a allocs) used(id string) {
	if dir, err := a.path(id); err == nil {
		_ = os.Chtimes(dir, time.Time{}, time.Now()) // the directory may be missing
	}
}

func (h *host) files(ctx context.Context, r *FilesRequest, archive io.Reader) error {
	if err := h.runs.check(r.TaskID); err != nil {
		return err
	}
	file, err := h.allocs.copied(r.TaskID)
	if err != nil {
		return err
	}
	uid, gid, err := h.userOf(r.User)
	if err != nil {
		return err
	}
	id, task := partsOf(r.TaskID)
	dir, err := h.allocs.make(id, task, uid, gid)
	if err != nil {
		return err
	}
	if err := unpack(ctx, archive, filepath.Join(dir, task), uid, gid); err != nil {
		return err
	}
	return save(file, r.At)
}

// unpack unpacks an archive in a task's directory. It runs tar(1) as the task's user, so links that the task has made
// there give tar no more rights than the task has. unpack ends when the context ends.
func unpack(ctx context.Context, archive io.Reader, dir string, uid, gid int) error {
	var said plain.Tail
	cmd := exec.CommandContext(ctx, "tar", "-x", "-p", "-m", "-f", "-") // -m: ignore file times, as clocks differ
	cmd.Dir, cmd.Stderr = dir, &said
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	if uid != os.Geteuid() {
		user := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)} //nolint:gosec // they come from an account
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	}
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	err = cmd.Start()
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("the host has no tar program: install tar")
	}
	if err != nil {
		return err
	}
	go func() { // ends with the RPC; unpack does not wait for it, because tar might not read the whole archive
		_, _ = io.Copy(input, archive)
		_ = input.Close()
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	first, _, _ := bytes.Cut(said, []byte("\n"))
	return errors.New(cmp.Or(string(first), err.Error()))
}

const (
	// The pause after a read without output. It doubles each time.
	shortestPause = 20 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// logs implements Logs. It waits for output, or for the end of the task.
func (h *host) logs(ctx context.Context, r *LogsRequest) (*LogsReply, error) {
	allocID, task := partsOf(r.TaskID)
	dir, err := h.allocs.path(allocID)
	if err != nil {
		return nil, err
	}
	stdout := corelogs.NewReader(dir, task+".stdout", r.Stdout.Number, r.Stdout.Size)
	defer stdout.Close()
	stderr := corelogs.NewReader(dir, task+".stderr", r.Stderr.Number, r.Stderr.Size)
	defer stderr.Close()
	buffer := make([]byte, Buffer)
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		status, err := h.InspectTask(r.TaskID) // before the read, so the files have all output of an exited task
		over := err != nil || status.State == drivers.TaskStateExited
		reply := &LogsReply{}
		for reader, part := range map[*corelogs.Reader]*LogsPart{stdout: &reply.Stdout, stderr: &reply.Stderr} {
			number, n, err := reader.Read(buffer)
			if err != nil {
				return nil, err
			}
			part.Number, part.Data = number, bytes.Clone(buffer[:n])
		}
		if len(reply.Stdout.Data)+len(reply.Stderr.Data) > 0 {
			return reply, nil
		}
		if over {
			return &LogsReply{Over: true}, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
