// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Acquire records that a task uses the environment for as long as the directory stateDir exists, which is absolute.
// Call it before the task starts, when the directory does not exist yet, and Release after that: until Release nothing
// checks whether the directory exists.
//
// The record need not survive a crash of the machine, because no task does.
func (e *Environment) Acquire(stateDir string) error {
	if !filepath.IsAbs(stateDir) {
		return fmt.Errorf("failed to acquire an environment: the state directory %q is not absolute", stateDir)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lock == nil {
		return errors.New("failed to acquire an environment that was released")
	}
	dir := e.store.path("users", e.id)
	sum := sha256.Sum256([]byte(stateDir))
	err := ignoreExisting(os.Mkdir(dir, 0o700))
	if err == nil {
		err = ignoreExisting(os.Symlink(stateDir, filepath.Join(dir, hex.EncodeToString(sum[:16]))))
	}
	if err != nil {
		return full(e.store.dir, fmt.Errorf("failed to acquire an environment: %w", err))
	}
	return nil
}

// Release ends what Get began: from now on only tasks that acquired the environment keep it from removal. It may be
// called more than once, and on nil.
func (e *Environment) Release() {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lock.close()
	e.lock = nil
}

// inUse reports whether a task uses an environment, and removes the links of tasks that have ended; used is called if
// there were any. The caller has the environment's lock exclusively, so no task is about to acquire it.
func (s *store) inUse(id string, used func()) (bool, error) {
	names, err := s.names(filepath.Join("users", id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	found := false
	for _, name := range names {
		link := s.path("users", id, name)
		_, err := os.Stat(link)
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			found = true
			continue
		}
		used()
		if err := os.Remove(link); err != nil {
			return false, fmt.Errorf("failed to remove a user of an environment: %w", err)
		}
	}
	return found, nil
}

func ignoreExisting(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
