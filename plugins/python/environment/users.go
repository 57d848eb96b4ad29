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
	"strings"
	"syscall"
)

// Acquire records that a task uses the environment for as long as the directory stateDir exists, which is absolute.
// Call it before the task starts, when the directory is not there yet, and Release after that: until then nothing looks
// for the directory.
//
// The record does not have to outlive the machine, as no task does.
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
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return full(e.store.dir, fmt.Errorf("failed to acquire an environment: %w", err))
	}
	sum := sha256.Sum256([]byte(stateDir))
	return full(e.store.dir, writeFile(filepath.Join(dir, hex.EncodeToString(sum[:16])), []byte(stateDir)))
}

// Release ends what Get began: from now on only tasks that acquired the environment keep it from removal. It may be
// called twice, and of nil.
func (e *Environment) Release() {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lock != nil {
		e.lock.close()
		e.lock = nil
	}
}

// inUse reports whether a task uses an environment, and removes the records of those that have ended. The caller has
// the environment's lock exclusively, so that none is about to acquire it.
func (s *store) inUse(id string) (bool, error) {
	names, err := s.names(filepath.Join("users", id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	found := false
	for _, name := range names {
		file := s.path("users", id, name)
		stateDir, err := os.ReadFile(file)
		if err != nil {
			return false, fmt.Errorf("failed to read the users of an environment: %w", err)
		}
		// a record that a crash cut off is of no task, which starts after it
		if !strings.HasSuffix(name, temporarySuffix) && filepath.IsAbs(string(stateDir)) {
			_, err = os.Lstat(string(stateDir))
			if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
				found = true
				continue
			}
			s.used(id) // until now, as far as we know
		}
		if err := os.Remove(file); err != nil {
			return false, fmt.Errorf("failed to remove a user of an environment: %w", err)
		}
	}
	return found, nil
}
