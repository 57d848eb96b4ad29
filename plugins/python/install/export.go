// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// groupless are the versions of uv that have --no-default-groups. Earlier ones can only leave out dev.
var groupless, _ = interpreter.ParseSpecifier(">=0.5.23")

// Export converts a project that uv locked (Set.UVLock) to a Set for the interpreter. It needs uv, and leaves no files
// in Work.
func (i Installer) Export(ctx context.Context, r Request) (*requirement.Set, error) {
	dir, err := os.MkdirTemp(r.Work, "export-")
	if err != nil {
		return nil, fmt.Errorf("failed to make a directory for the locked project: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := r.give(dir); err != nil {
		return nil, err
	}
	lock := r.Requirements.UVLock
	r.Work, r.Requirements = dir, &requirement.Set{}
	b, err := i.begin(r)
	if err != nil {
		return nil, err
	}

	project, locked := "pyproject.toml", "uv.lock"
	without := "--no-dev"
	if groupless.Allows(i.Version) {
		without = "--no-default-groups"
	}
	argv := append(b.uvGlobal("export"), "--frozen", "--offline", "--python", r.Python.Path)
	if without != "--no-dev" || !slices.Contains(lock.Choice.Groups, "dev") { // --no-dev excludes --group dev
		argv = append(argv, without)
	}
	for _, extra := range lock.Choice.Extras {
		argv = append(argv, "--extra="+extra)
	}
	for _, group := range lock.Choice.Groups {
		argv = append(argv, "--group="+group)
	}
	if lock.Script {
		project, locked = "script.py", "script.py.lock"
		argv = append(argv, "--script", filepath.Join(dir, project))
	} else {
		argv = append(argv, "--no-emit-workspace")
	}
	for name, content := range map[string][]byte{project: lock.Project, locked: lock.Lock} {
		if err := writeFor(filepath.Join(dir, name), content, r.As); err != nil {
			return nil, fmt.Errorf("failed to write the locked project: %w", err)
		}
	}
	const exported = "exported.txt" // a requirements file, as its name says to uv
	if err := b.tool(ctx, append(argv, "--output-file", filepath.Join(dir, exported))); err != nil {
		return nil, err
	}
	// The builder wrote that file: it must not lead out of the directory.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("failed to read what uv exported: %w", err)
	}
	defer root.Close()
	return requirement.Lock(exported, root.ReadFile)
}
