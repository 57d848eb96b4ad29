// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package owndir

import (
	"errors"
	"io/fs"
	"os"
)

// RemoveAll is like os.RemoveAll, but also removes this user's read-only directories, such as those
// of sealed environments. (Only root could remove files from them otherwise.) It follows no links.
func RemoveAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	openUp(dir)
	return os.RemoveAll(dir)
}

// openUp makes the directories below dir writable, so their owner can remove files from them. If a
// running process replaces a directory with a link, os.Root prevents chmod from following it out
// of dir. Errors of chmod are ignored, since the removal fails and reports them.
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
