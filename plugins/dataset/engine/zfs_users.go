// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
)

// Users is part of Backend.
func (z *zfs) Users(ctx context.Context, name string) ([]string, error) {
	p, err := z.get(ctx, name)
	if err != nil {
		return nil, err
	}
	return z.users(ctx, p.full, p.value("mountpoint"))
}

// users returns the mounts of a dataset, in all mount namespaces, except those at its own
// directory: where a namespace hears of the host's mounts, they go with the host's.
func (z *zfs) users(ctx context.Context, full, except string) ([]string, error) {
	spaces, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return nil, err
	}
	var users []string
	seen := map[string]bool{}
	for _, link := range spaces {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		space, _ := os.Readlink(link) // some processes show their mounts, but not this
		if space != "" && seen[space] {
			continue
		}
		process := filepath.Dir(filepath.Dir(link))
		text, err := os.ReadFile(filepath.Join(process, "mountinfo"))
		if err != nil {
			if !gone(err) {
				return nil, fmt.Errorf("failed to look at a process that may use dataset %s: %w", full, err)
			}
			continue // the next process of this namespace
		}
		seen[space] = true
		mounted, err := mountinfo.GetMountsFromReader(bytes.NewReader(text), nil)
		if err != nil {
			return nil, err
		}
		for _, m := range mounted {
			if m.Source == full && (m.Root != "/" || m.Mountpoint != except) {
				comm, _ := os.ReadFile(filepath.Join(process, "comm"))
				users = append(users, fmt.Sprintf("process %s (%s) has it mounted at %s", filepath.Base(process),
					strings.TrimSpace(string(comm)), m.Mountpoint))
				break
			}
		}
	}
	return users, nil
}

// gone reports whether an error is that of a process which ended. One without mounts, which
// is ending, has EINVAL.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EINVAL)
}
