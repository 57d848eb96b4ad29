// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockTime is how long a lock is waited for. Who holds it has it for milliseconds, unless the process is stopped.
const lockTime = 30 * time.Second

// waitLock locks a file of this user, which it makes if it is missing. Closing the file unlocks it.
func waitLock(path string, how int) (*os.File, error) {
	for end := time.Now().Add(lockTime); ; time.Sleep(10 * time.Millisecond) {
		f, err := tryLock(path, how)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
			return f, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("failed to lock %s: %w", path, err)
		}
	}
}

// tryLock returns EWOULDBLOCK if another process holds a lock that excludes this one.
func tryLock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	return f, nil
}

// save replaces a file by a value as JSON, which only this user can read. The directory is this user's.
func save(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// load reads what save has written.
func load(path string, value any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, value)
}
