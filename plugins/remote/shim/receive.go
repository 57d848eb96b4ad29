// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

// files is part of server.
func (h *host) files(ctx context.Context, r *FilesRequest, archive io.Reader) error {
	if err := h.owned(r.TaskID); err != nil {
		return err
	}
	file, err := h.allocs.copied(r.AllocID, r.Task)
	if err != nil {
		return err
	}
	uid, gid, err := h.userOf(r.User)
	if err != nil {
		return err
	}
	dir, err := h.allocs.make(r.AllocID, r.Task, r.Owner, uid, gid)
	if err != nil {
		return err
	}
	if err := unpack(ctx, archive, filepath.Join(dir, r.Task), uid, gid); err != nil {
		return err
	}
	return save(file, r.At)
}

// copiedAt is FilesRequest.At of the last copy.
func (h *host) copiedAt(allocID, task string) (at time.Time) {
	if file, err := h.allocs.copied(allocID, task); err == nil {
		_ = load(file, &at) // not there: nothing was copied
	}
	return at
}

// unpack unpacks an archive in a task's directory by tar(1), as the task's user: whatever a task has made there, the
// program can do no more than the task. The context ends it.
func unpack(ctx context.Context, archive io.Reader, dir string, uid, gid int) error {
	var said plain.Tail
	cmd := exec.CommandContext(ctx, "tar", "-x", "-p", "-m", "-f", "-") // -m: the node may have another time
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
		return errors.New("there is no tar program on the host")
	}
	if err != nil {
		return err
	}
	go func() { // it ends with the call, which does not wait for it: tar may not read all of the archive
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
