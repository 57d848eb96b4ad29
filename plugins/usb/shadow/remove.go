// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shadow

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Clear removes the directories of a former run's devices, except those in keep. It does
// nothing if there is no directory yet.
func (d *Dir) Clear(keep map[string]bool) error {
	if _, err := os.Lstat(filepath.Join(d.path, mark)); err != nil {
		return nil // not ours, or not there
	}
	wanted := map[string]bool{mark: true}
	for name := range keep {
		wanted[name] = true
	}
	return retain(d.path, wanted)
}

// Empty removes a device's nodes and leaves the directories, which a running task
// may have mounted: what is made in them later is there for it, too.
func (d *Dir) Empty(device string) error {
	if !plain(device) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := os.Lstat(filepath.Join(d.path, mark)); err != nil {
		return nil // not ours, or not there
	}
	return remove(filepath.Join(d.path, device), func(fs.FileInfo) bool { return true })
}

// Withdraw removes every node with this number, since its device has gone and the kernel
// gives the number to the next device, of any bus. Make makes no node with it until Admit,
// or until freeFor has passed: the event comes before the node disappears from sysfs.
func (d *Dir) Withdraw(block bool, major, minor uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	gone := number{block, unix.Mkdev(major, minor)}
	d.withdrawn[gone], d.free[gone] = true, time.Now()
	if _, err := os.Lstat(filepath.Join(d.path, mark)); err != nil {
		return nil // nothing is made yet
	}
	return remove(d.path, func(info fs.FileInfo) bool {
		mode := info.Mode()
		return mode&fs.ModeDevice != 0 && gone == number{mode&fs.ModeCharDevice == 0, info.Sys().(*syscall.Stat_t).Rdev}
	})
}

// Admit reports that a device has the number again.
func (d *Dir) Admit(block bool, major, minor uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.free, number{block, unix.Mkdev(major, minor)})
}

// Doubt reports that calls of Admit may have been missed.
func (d *Dir) Doubt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.free)
}

// remove removes some of the nodes and links below a directory.
func remove(dir string, which func(fs.FileInfo) bool) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil || !which(info) {
			return err
		}
		return root.Remove(name)
	})
}

// retain removes everything from a directory except what is wanted.
func retain(dir string, wanted map[string]bool) error {
	there, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range there {
		if !wanted[e.Name()] {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
