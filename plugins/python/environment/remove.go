// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

const trashed = "trash" // what builds/<this>.* is

// discard removes an environment that is not in use. Wherever it is interrupted, what is left is not used: the record
// goes first. It releases l, the environment's lock.
func (s *store) discard(id string, l *lock) error {
	defer l.close()
	for _, file := range []string{s.entryPath(id), s.entryPath(id) + temporarySuffix} {
		if err := ignoreMissing(os.Remove(file)); err != nil {
			return fmt.Errorf("failed to remove an environment's record: %w", err)
		}
	}
	if os.Geteuid() != 0 { // without root, what is not writable cannot be moved
		if err := ignoreMissing(os.Chmod(s.path("envs", id), 0o700)); err != nil {
			return fmt.Errorf("failed to remove an environment: %w", err)
		}
	}
	return s.trash(l, s.path("envs", id), s.path("users", id))
}

// trash moves paths out of the way, releases their lock, which may be nil, and then removes them, which may take long.
func (s *store) trash(l *lock, paths ...string) (err error) {
	var aside []string
	for _, path := range paths {
		to := s.path("builds", trashed+"."+rand.Text())
		if failed := os.Rename(path, to); failed == nil {
			aside = append(aside, to)
		} else if ignoreMissing(failed) != nil {
			err = errors.Join(err, fmt.Errorf("failed to move what is to be removed: %w", failed))
		}
	}
	l.close()
	s.removeTree(aside...)
	return err
}

// removeTree follows no links. What it cannot remove, Tidy tries again.
func (s *store) removeTree(paths ...string) {
	for _, path := range paths {
		err := os.RemoveAll(path)
		if errors.Is(err, fs.ErrPermission) { // not root: what is in a read-only directory stays
			openUp(path)
			err = os.RemoveAll(path)
		}
		if err != nil {
			s.log("failed to remove %s, Tidy will try again: %v", path, err)
		}
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// openUp lets what is in read-only directories be removed by their owner. A process that
// is still there may put a link in the place of a directory meanwhile: the Root keeps
// chmod from following it out of dir. What can't be opened up can't be removed, and the
// removal says so.
func openUp(dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	_ = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			_ = root.Chmod(name, 0o700)
		}
		return nil
	})
}
