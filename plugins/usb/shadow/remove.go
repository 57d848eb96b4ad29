// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shadow

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Clear removes all nodes, except those of the devices in keep, so none is left from a previous run. Like Empty, it
// keeps the devices' directories. It does nothing if d does not exist or is not the plugin's directory.
func (d *Dir) Clear(keep map[string]bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isMarked() {
		return nil
	}
	return remove(d.path, func(name string, _ fs.FileInfo) bool {
		device, _, _ := strings.Cut(name, "/")
		return device != mark && !keep[device]
	})
}

// Empty removes a device's nodes but not its directories, so a running task that has mounted a directory sees nodes
// that are made there later.
func (d *Dir) Empty(device string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !plain(device) || !d.isMarked() {
		return nil
	}
	return remove(filepath.Join(d.path, device), func(string, fs.FileInfo) bool { return true })
}

// Withdraw removes every node with this number. Call it when the kernel reports that the number's device was unplugged,
// because the next device, on any bus, may get the number. Make then refuses the number until Admit, or until freeFor
// has passed: sysfs still lists the removed node for a moment after the report.
func (d *Dir) Withdraw(block bool, major, minor uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	gone := number{block, unix.Mkdev(major, minor)}
	d.withdrawn[gone], d.free[gone] = true, time.Now()
	if !d.isMarked() {
		return nil
	}
	return remove(d.path, func(_ string, info fs.FileInfo) bool {
		mode := info.Mode()
		return mode&fs.ModeDevice != 0 && gone == number{mode&fs.ModeCharDevice == 0, info.Sys().(*syscall.Stat_t).Rdev}
	})
}

// Admit lets Make use the number again. Call it when the kernel reports a new node with this number.
func (d *Dir) Admit(block bool, major, minor uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.free, number{block, unix.Mkdev(major, minor)})
}

// Doubt is Admit for all numbers. Call it when reports of new nodes may have been missed.
func (d *Dir) Doubt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.free)
}

// remove removes nodes and links below dir, as selected by which. It first takes all rights from a node: a task that
// keeps the node, by an O_PATH descriptor or a hard link, could otherwise open the next device with the same number. If
// one can't be removed, remove continues with the others.
func remove(dir string, which func(name string, info fs.FileInfo) bool) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	var failed error
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil || !which(name, info) {
			return err
		}
		if info.Mode()&fs.ModeDevice != 0 {
			failed = errors.Join(failed, root.Chmod(name, 0))
			chown := root.Lchown(name, 0, 0)
			if !errors.Is(chown, fs.ErrPermission) { // without root this fails, and the agent owns the node already
				failed = errors.Join(failed, chown)
			}
		}
		failed = errors.Join(failed, root.Remove(name))
		return nil
	})
	return errors.Join(failed, err)
}

// discard removes the node or link at path, as remove does. It does nothing if path does not exist.
func discard(path string) error {
	return remove(filepath.Dir(path), func(name string, _ fs.FileInfo) bool { return name == filepath.Base(path) })
}
