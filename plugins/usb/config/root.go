// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/outrider-dev/outrider/internal/core/owndir"

	"github.com/outrider-dev/outrider/plugins/usb/simulation"
)

// OpenTree opens the plugin's root directory: / or a simulation, or an empty tree if the simulation does not exist yet.
// Tasks get the nodes of a simulation, so OpenTree refuses a directory that users other than root and this process's
// user can change, and the tree follows no links that lead out of it. The caller must call done.
func OpenTree(root string) (tree fs.FS, done func(), err error) {
	if root == "/" {
		return os.DirFS(root), func() {}, nil
	}
	dir, err := owndir.Open(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nothing{}, func() {}, nil // stays empty for this scan, even if another user makes the directory now
	}
	if err != nil {
		return nil, nil, fmt.Errorf("root: %w", err)
	}
	defer dir.Close()

	r, err := os.OpenRoot(dir.Name())
	if err != nil {
		return nil, nil, fmt.Errorf("root: %w", err)
	}
	tree = r.FS()
	entries, err := fs.ReadDir(tree, ".")
	if err == nil && len(entries) > 0 && !simulation.Is(tree) {
		err = fmt.Errorf("root: %s is not a simulation: remove the option root to use this machine's devices", root)
	}
	if err != nil {
		r.Close()
		return nil, nil, err
	}
	return tree, func() { r.Close() }, nil
}

// nothing is an empty tree.
type nothing struct{}

// Open implements fs.FS.
func (nothing) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// IsDir reports whether a path is a directory.
func IsDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
