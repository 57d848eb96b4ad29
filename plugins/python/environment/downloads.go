// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// downloadsName is the directory of what installers keep for other builds: downloads/<user>.<boot>. After the machine's
// next start no build uses it: a crash may have left files empty, and uv installs them so, even with hashes.
func (s *store) downloadsName() string {
	return filepath.Join("downloads", strconv.FormatUint(uint64(s.builtBy()), 10)+"."+task.BootID())
}

// acquireDownloads makes the directory if it is missing. It is not removed until the lock is closed.
func (s *store) acquireDownloads(ctx context.Context, id string) (dir string, l *lock, err error) {
	name := s.downloadsName()
	if l, err = s.waitLock(ctx, name, shared, nil); err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	dir = s.path(name)
	if _, err = os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, l, err
	}
	made := s.path("builds", id+".downloads")
	if err = s.buildersDirectory(made); err != nil {
		return "", nil, err
	}
	if err = os.Rename(made, dir); err != nil {
		s.removeTree(made)
		if errors.Is(err, fs.ErrExist) { // another build was faster
			err = nil
		}
	}
	if err != nil {
		err = fmt.Errorf("failed to make a directory for downloads: %w", err)
	}
	return dir, l, err
}
