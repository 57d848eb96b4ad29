// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// parts are the files of an environment without packages, which no package may change: its settings, the links to its
// interpreter, its scripts. Links have their target as content.
type parts map[string][]byte

// snapshot reads the new environment.
func (b *build) snapshot() (parts, error) {
	found := parts{}
	err := b.inside(func(root *os.Root) error {
		return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				found[name], err = readPart(root, name, -1)
			}
			return err
		})
	})
	return found, err
}

// readPart reads a file of at most max bytes (-1: any), or a link.
func readPart(root *os.Root, name string, max int) ([]byte, error) {
	info, err := root.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := root.Readlink(name)
		return []byte("link " + target), err
	case !info.Mode().IsRegular() || max >= 0 && info.Size() > int64(max):
		return nil, errors.New("it is not what it was")
	}
	return root.ReadFile(name)
}

// inside calls f with the environment's directory, out of which no link of the builder leads.
func (b *build) inside(f func(*os.Root) error) error {
	root, err := os.OpenRoot(b.Dir)
	if err == nil {
		defer root.Close()
		err = f(root)
	}
	var e *Error
	if err != nil && !errors.As(err, &e) {
		return fmt.Errorf("failed to look at the new environment: %w", err)
	}
	return err
}

// verify refuses packages that changed the environment itself. What else they may contain is checked when the
// environment is sealed, and outside of it they could not write.
func (b *build) verify(before parts) error {
	return b.inside(func(root *os.Root) error {
		for name, content := range before {
			if now, err := readPart(root, name, len(content)); err != nil || !bytes.Equal(now, content) {
				return b.refused(Malicious, "a package changed or removed %q of the environment itself", name)
			}
		}
		return nil
	})
}
