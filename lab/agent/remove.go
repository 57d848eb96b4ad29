package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// removeAll is os.RemoveAll also where directories are not writable, from which only
// root can remove: environments of the python driver are sealed so.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	// what can't be opened up can't be removed either, and that is told below
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			err = os.Chmod(path, 0o700)
		}
		return err
	})
	return os.RemoveAll(dir)
}
