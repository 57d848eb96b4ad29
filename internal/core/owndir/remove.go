// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package owndir

import (
	"errors"
	"io/fs"
	"os"
)

// RemoveAll is like os.RemoveAll, but also removes this user's read-only directories, such as those of sealed
// environments. os.RemoveAll can do so only as root. RemoveAll follows no symbolic links.
func RemoveAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	openUp(dir)
	return os.RemoveAll(dir)
}

// openUp makes dir and the directories below it writable, so that their owner can remove files from them. os.Root keeps
// chmod inside dir even if a running process replaces a directory with a link. Errors of chmod are ignored: the removal
// then fails as well, and its error is reported.
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
