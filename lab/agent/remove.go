// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"errors"
	"io/fs"
	"os"
)

// removeAll is os.RemoveAll also where directories are not writable, from which only
// root can remove: environments of the python driver are sealed so.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	openUp(dir)
	return os.RemoveAll(dir)
}

// openUp lets what is in read-only directories be removed by their owner. A process that
// is still there may put a link in the place of a directory meanwhile: the Root keeps
// chmod from following it out of dir. What can't be opened up can't be removed, and the
// removal says so.
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
