// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// maxSocketPath is the longest path that fits into sun_path of unix(7).
const maxSocketPath = 107

// stateRoot returns <state_dir>/<plugin>. It creates nothing, and checks that every part of the path that exists
// belongs to root or this user.
func stateRoot(configured, name string) (string, error) {
	dir := configured
	switch {
	case dir != "" && !filepath.IsAbs(dir):
		return "", fmt.Errorf("state_dir %q is not absolute: begin it with /, such as \"/run/outrider\"", dir)
	case dir != "":
	case os.Geteuid() == 0:
		dir = task.DefaultDir
	default:
		dir = os.Getenv("XDG_STATE_HOME")
		if dir == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", errors.New("state_dir has no default, because the agent's user has no home directory: " +
					"set state_dir in the plugin's config")
			}
			dir = filepath.Join(home, ".local", "state")
		}
		dir = filepath.Join(dir, "outrider")
	}
	root := filepath.Join(dir, name)
	const node = "/00000000-0000-0000-0000-000000000000"
	if n := len(task.Store{Dir: root + node}.Socket()); n > maxSocketPath {
		return "", fmt.Errorf("state_dir %q is %d bytes too long for the path of a unix socket: choose a shorter one",
			dir, n-maxSocketPath)
	}
	return root, owned(root)
}

// owned refuses a state directory that another user can replace.
func owned(dir string) error {
	if err := owndir.Check(dir); err != nil {
		return fmt.Errorf("state_dir can't be used: %w", err)
	}
	return nil
}

// stores lists the agents' stores below root. Before SetConfig, root is "" and there are no stores.
func stores(root string) ([]string, error) {
	if root == "" {
		return nil, nil
	}
	if err := owned(root); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("failed to list the state of tasks: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		if dir := filepath.Join(root, e.Name()); e.IsDir() && owned(dir) == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}
