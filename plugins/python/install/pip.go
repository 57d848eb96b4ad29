// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// check refuses requests that could run code of a package, before anything runs.
func (b *build) check() error {
	if b.AllowSdists {
		return nil
	}
	if b.maxProcesses() > 0 && strings.Contains(b.Python.Libc, "musl") {
		return errors.New("pip has to start a program to learn the version of musl, which it may not on a node " +
			"that builds no packages from source (allow_sdists): install uv")
	}
	return b.Requirements.CheckWheels()
}

func (b *build) pipInstall() ([]string, error) {
	path, err := b.pipPath()
	if err != nil {
		return nil, fmt.Errorf("failed to prepare pip: %w", err)
	}
	b.env = append(b.env, "PYTHONPATH="+path)
	argv := []string{filepath.Join(b.Dir, "bin/python"), "-m", "pip", "install",
		"--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--no-color", "--no-compile",
		"--retries", "2", "--timeout", "15"}
	if b.Downloads == "" {
		argv = append(argv, "--no-cache-dir")
	} else {
		argv = append(argv, "--cache-dir", b.kept())
	}
	if !b.AllowSdists {
		argv = append(argv, "--only-binary", ":all:")
	}
	return append(argv, b.common()...), nil
}

// pipPath returns a directory, or an archive, from which the environment's interpreter imports pip and nothing else:
// packages beside a pip would count as installed.
func (b *build) pipPath() (string, error) {
	pip := b.Python.PipDir
	if pip == "" {
		pip = b.with.Python.PipDir
	}
	if info, err := os.Stat(filepath.Dir(pip)); err == nil && !info.IsDir() {
		return filepath.Dir(pip), nil // a wheel
	}
	root, err := os.OpenRoot(b.Work) // which is the builder's
	if err != nil {
		return "", err
	}
	defer root.Close()
	const name = "python-path"
	if err := root.Mkdir(name, 0o755); err != nil {
		return "", err
	}
	return filepath.Join(b.Work, name), root.Symlink(pip, filepath.Join(name, "pip"))
}

// maxProcesses keeps pip from building a package that another package names by its URL: --only-binary does not apply to
// it, but a build needs a second process. The kernel counts the processes of a user, so the user must have no others. 0
// is no limit.
func (b *build) maxProcesses() int {
	if b.with.Name == "pip" && !b.AllowSdists && b.As != nil {
		return 1
	}
	return 0
}
