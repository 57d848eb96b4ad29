// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"errors"
	"io/fs"
	"os"
)

// removeTree follows no links. Tidy tries to remove again what it leaves.
func (s *store) removeTree(paths ...string) {
	for _, path := range paths {
		err := os.RemoveAll(path)
		if errors.Is(err, fs.ErrPermission) { // not root: what is in a read-only directory stays
			openUp(path)
			err = os.RemoveAll(path)
		}
		if err != nil {
			s.log("failed to remove %s, Tidy will try again: %v", path, err)
		}
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// openUp makes read-only directories writable, so that their owner can remove what is in them. A process that still
// runs may replace a directory by a link meanwhile: the Root keeps chmod from following it out of dir. Errors show in
// the removal.
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
