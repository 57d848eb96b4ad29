// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package simulate makes pools of zfs-fuse in sparse files, to try datasets where no disk is
// to spare: for tests, the lab, and nomad-device-dataset simulate.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Pool is one that Make has made: what a class of the operator's file needs.
type Pool struct {
	Root    string // a dataset
	Program string // zfs, absolute
}

// ErrMissing is wrapped by the error of Make on a machine that lacks something; its text
// says what.
var ErrMissing = errors.New("it is missing")

// Make makes a pool of zfs-fuse, of so many bytes. It keeps everything in dir, which must not
// exist, so that this is all that Remove needs to know. If it fails, it leaves nothing.
func Make(ctx context.Context, dir string, size int64) (Pool, error) {
	if !filepath.IsAbs(dir) {
		return Pool{}, fmt.Errorf("%q is not absolute: write it from /", dir)
	}
	if err := check(); err != nil {
		return Pool{}, err
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		return Pool{}, fmt.Errorf("failed to make a directory for the pool: %w", err)
	}
	err := os.WriteFile(filepath.Join(dir, kindFile), []byte("zfs-fuse"), 0o600)
	var pool Pool
	if err == nil {
		pool, err = makeZFSFuse(ctx, dir, size)
	}
	if err != nil {
		return Pool{}, errors.Join(err, Remove(context.WithoutCancel(ctx), dir))
	}
	return pool, nil
}

// kindFile marks a directory as one of Make's.
const kindFile = "kind"

// Remove removes a pool and its directory. It can be called again, and it removes what a
// killed Make left. One that is not there is no error.
func Remove(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(dir, kindFile)); errors.Is(err, os.ErrNotExist) {
		return os.Remove(dir) // killed before it made anything: refuses a directory with something else in it
	} else if err != nil {
		return err
	}
	if err := removeZFSFuse(ctx, dir); err != nil {
		return fmt.Errorf("failed to remove the pool in %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

// check returns what the machine lacks.
func check() error {
	if unix.Geteuid() != 0 {
		return fmt.Errorf("only root can make a pool: %w", ErrMissing)
	}
	for _, program := range []string{"zfs-fuse", "zfs", "zpool"} {
		if _, err := find(program); err != nil {
			return fmt.Errorf("a pool in a file needs the program %s of the package zfs-fuse: %w", program, ErrMissing)
		}
	}
	return nil
}

// find is exec.LookPath that also looks where only root has programs.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, program))
		}
	}
	return path, err
}

// run runs a program and returns what it wrote; the error has its last line.
func run(ctx context.Context, program string, args ...string) (string, error) {
	path, err := find(program)
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("%s: %s (%w)", program, lines[len(lines)-1], err)
	}
	return strings.TrimSpace(string(out)), nil
}
