// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package builders reserves the user and group ids under which plugins build what tasks
// use later, such as environments of packages. No driver runs a task under one of them,
// since the task could change what is being built.
package builders

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// First to Last are the user and group ids of builders on every node. They are outside of Nomad's dynamic users
// (80000 to 89999), of systemd's ids (60001 to 60513, 61184 to 65519, 65534) and of subordinate ids (from 100000,
// subuid(5)).
const (
	First = 79900
	Last  = 79999
)

// Dir is where Declare records further ids, for all drivers of a node. Only root can write there.
const Dir = "/run/outrider/builders"

// Reserved reports whether an id is a builder's on every node.
func Reserved(id uint32) bool { return First <= id && id <= Last }

// Declare reserves ids for builders until the machine reboots. dir is Dir except in tests. The caller is root.
func Declare(dir string, ids ...uint32) error {
	if err := Make(dir); err != nil {
		return err
	}
	for _, id := range ids {
		if Reserved(id) {
			continue
		}
		f, err := os.OpenFile(file(dir, id), os.O_CREATE|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return fmt.Errorf("failed to record that %d is a builder's id: %w", id, err)
		}
		f.Close()
	}
	return nil
}

// Make makes dir if it is missing. The error says what is wrong with one that users other than root could change.
func Make(dir string) error {
	f, err := owndir.Make(dir, 0o700)
	if err != nil {
		return fmt.Errorf("failed to make the directory of builders: %w", err)
	}
	return f.Close()
}

// Is reports whether an id is a builder's: it is reserved, or was declared. It fails if users other than root
// could have changed dir, since the declared ids are unknown then.
func Is(dir string, id uint32) (bool, error) {
	if Reserved(id) {
		return true, nil
	}
	_, err := os.Lstat(file(dir, id))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return false, nil // without root, every task has the agent's own user
	case !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("failed to find out whether %d is a builder's id: %w", id, err)
	}
	if err := owndir.Check(dir); err != nil { // a missing one is fine: no builder was declared on this node
		return false, fmt.Errorf("failed to find out who builds on this node: %w", err)
	}
	return false, nil
}

func file(dir string, id uint32) string {
	return filepath.Join(dir, strconv.FormatUint(uint64(id), 10))
}
