package shadow

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
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
	return d.remove(device, func(string, fs.FileInfo) bool { return true })
}

// Yield removes those nodes of a device that is not plugged in which are others' now:
// the kernel gives numbers and names to whatever comes next, on USB or not. root has
// its sys/dev.
func (d *Dir) Yield(device, root string) error {
	return d.remove(device, func(path string, info fs.FileInfo) bool {
		if mode := info.Mode(); mode&fs.ModeDevice != 0 {
			kind, number := "block", info.Sys().(*syscall.Stat_t).Rdev
			if mode&fs.ModeCharDevice != 0 {
				kind = "char"
			}
			path = filepath.Join(root, "sys/dev", kind, fmt.Sprintf("%d:%d", unix.Major(number), unix.Minor(number)))
		}
		_, err := os.Stat(path) // of a link: what it leads to
		return err == nil
	})
}

// remove removes some of a device's nodes and links.
func (d *Dir) remove(device string, which func(path string, info fs.FileInfo) bool) error {
	if !plain(device) {
		return nil
	}
	root, err := os.OpenRoot(filepath.Join(d.path, device))
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
		if err != nil || !which(filepath.Join(root.Name(), name), info) {
			return err
		}
		return root.Remove(name)
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
