package shadow

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Clear removes every device that a former run left and that is not to be kept. It
// does nothing where there is no directory yet.
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
	return filepath.WalkDir(filepath.Join(d.path, device), func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil || e.IsDir():
			return err
		}
		return os.Remove(path)
	})
}

// Yield removes those nodes of a device that is not plugged in which are others' now:
// the kernel gives numbers and names to whatever is plugged in next.
func (d *Dir) Yield(device string, others []Node) error {
	if !plain(device) {
		return nil
	}
	return filepath.WalkDir(filepath.Join(d.path, device), func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil || e.IsDir():
			return err
		}
		target, _ := os.Readlink(path)
		if slices.ContainsFunc(others, func(n Node) bool { return n.is(path) || target == n.Source }) {
			return os.Remove(path)
		}
		return nil
	})
}

// retain removes everything from a directory but what is wanted.
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
