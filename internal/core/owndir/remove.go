// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package owndir

import (
	"errors"
	"io/fs"
	"os"
)

// RemoveAll is os.RemoveAll that also removes this user's directories that are not writable,
// as those of sealed environments. Only root can remove from them without this. It follows
// no links.
func RemoveAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	openUp(dir)
	return os.RemoveAll(dir)
}

// openUp makes directories below dir writable, so that their owner can remove what is in
// them. A process that still runs there may replace a directory by a link meanwhile: the
// Root keeps chmod from following it out of dir. If a chmod fails, so does the removal,
// which reports it.
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
