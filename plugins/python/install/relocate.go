// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// relocate writes the environment's final place into its programs and its pyvenv.cfg. The files belong to another user,
// so it reads and writes through an os.Root.
func (b *build) relocate() error {
	if b.Final == "" || b.Final == b.Dir {
		return nil
	}
	root, err := os.OpenRoot(b.Dir)
	if err != nil {
		return fmt.Errorf("failed to open the new environment: %w", err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), "bin")
	if err != nil {
		return fmt.Errorf("failed to list the environment's programs: %w", err)
	}
	names := []string{"pyvenv.cfg"}
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, path.Join("bin", e.Name()))
		}
	}
	for _, name := range names {
		if err := replace(root, name, b.Dir, b.Final); err != nil {
			return fmt.Errorf("failed to name the environment's final place in %s: %w", clean(name), err)
		}
	}
	return nil
}

// maxText is more than any script has. Larger files are binaries.
const maxText = 1 << 20

// replace rewrites a text file in place; its owner and permissions stay.
func replace(root *os.Root, name, old, replacement string) error {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (info.Size() > maxText || !info.Mode().IsRegular()) {
		return nil
	}
	if err != nil {
		return err
	}
	text, err := root.ReadFile(name)
	if err != nil {
		return err
	}
	if bytes.IndexByte(text, 0) >= 0 || !bytes.Contains(text, []byte(old)) {
		return nil
	}
	return root.WriteFile(name, []byte(strings.ReplaceAll(string(text), old, replacement)), info.Mode().Perm())
}
