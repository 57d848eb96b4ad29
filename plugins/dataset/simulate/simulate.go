// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package simulate makes file systems in sparse files, to try datasets where no disk is
// to spare: for tests, the lab, and nomad-device-dataset simulate.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Pool is a file system that Make has made: what a class of the operator's file needs.
type Pool struct {
	Backend string // "btrfs" or "zfs"
	Root    string // a directory, or a dataset
	Program string // the file system's program, absolute
}

// kind is one way to make a pool. Each keeps all that it makes in a directory, which is all
// that remove needs to know, also of one that was killed.
type kind struct {
	programs map[string]string // those it needs, with their packages
	make     func(ctx context.Context, dir string, size int64) (Pool, error)
	remove   func(ctx context.Context, dir string) error
}

var kinds = map[string]kind{
	"btrfs": {
		programs: map[string]string{"mkfs.btrfs": "btrfs-progs", "btrfs": "btrfs-progs", "losetup": "util-linux",
			"mount": "mount", "umount": "mount"},
		make:   makeBtrfs,
		remove: removeBtrfs,
	},
	"zfs-fuse": {
		programs: map[string]string{"zfs-fuse": "zfs-fuse", "zfs": "zfs-fuse", "zpool": "zfs-fuse"},
		make:     makeZFSFuse,
		remove:   removeZFSFuse,
	},
}

// Kinds returns what Make can make.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// ErrMissing is wrapped by the error of Make on a machine that lacks something; its text
// says what.
var ErrMissing = errors.New("it is missing")

// Make makes a pool of a kind, "btrfs" or "zfs-fuse", of so many bytes. It keeps everything
// in dir, which must not exist. If it fails, it leaves nothing.
func Make(ctx context.Context, name, dir string, size int64) (Pool, error) {
	k, ok := kinds[name]
	if !ok {
		return Pool{}, fmt.Errorf("there is no pool %q: write btrfs or zfs-fuse", name)
	}
	if !filepath.IsAbs(dir) {
		return Pool{}, fmt.Errorf("%q is not absolute: write it from /", dir)
	}
	if err := k.check(name); err != nil {
		return Pool{}, err
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		return Pool{}, fmt.Errorf("failed to make a directory for the pool: %w", err)
	}
	err := os.WriteFile(filepath.Join(dir, "kind"), []byte(name), 0o600)
	var pool Pool
	if err == nil {
		pool, err = k.make(ctx, dir, size)
	}
	if err != nil {
		return Pool{}, errors.Join(err, Remove(context.WithoutCancel(ctx), dir))
	}
	return pool, nil
}

// Remove removes a pool and its directory. It can be called again, and it removes what a
// killed Make left. One that is not there is no error.
func Remove(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	name, err := os.ReadFile(filepath.Join(dir, "kind"))
	if errors.Is(err, os.ErrNotExist) {
		return os.Remove(dir) // killed before it made anything: refuses a directory with something else in it
	}
	if err != nil {
		return err
	}
	if k, ok := kinds[string(name)]; ok {
		if err := k.remove(ctx, dir); err != nil {
			return fmt.Errorf("failed to remove the pool in %s: %w", dir, err)
		}
	}
	return os.RemoveAll(dir)
}

// check returns what the machine lacks.
func (k kind) check(name string) error {
	if unix.Geteuid() != 0 {
		return fmt.Errorf("only root can make a %s pool: %w", name, ErrMissing)
	}
	for _, program := range slices.Sorted(maps.Keys(k.programs)) {
		if _, err := find(program); err != nil {
			return fmt.Errorf("a %s pool needs the program %s of the package %s: %w", name, program,
				k.programs[program], ErrMissing)
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
