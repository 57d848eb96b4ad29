// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// Export converts a project that uv locked (Set.UVLock) to a Set for the interpreter.
func (i Installer) Export(ctx context.Context, r Request) (*requirement.Set, error) {
	b, err := i.begin(r)
	if err != nil {
		return nil, err
	}
	defer b.end()
	lock := r.Requirements.UVLock
	argv := append(b.uvGlobal("export"), "--frozen", "--offline", "--python", r.Python.Path, "--no-default-groups")
	for _, extra := range lock.Choice.Extras {
		argv = append(argv, "--extra="+extra)
	}
	for _, group := range lock.Choice.Groups {
		argv = append(argv, "--group="+group)
	}
	project, locked := "pyproject.toml", "uv.lock"
	if lock.Script {
		project, locked = "script.py", "script.py.lock"
		argv = append(argv, "--script", project)
	} else {
		argv = append(argv, "--no-emit-workspace")
	}
	if _, err := b.file(project, lock.Project); err != nil {
		return nil, err
	}
	if _, err := b.file(locked, lock.Lock); err != nil {
		return nil, err
	}
	const exported = "exported.txt" // a requirements file, as its name says to uv
	if err := b.tool(ctx, append(argv, "--output-file", exported)); err != nil {
		return nil, err
	}
	return requirement.Lock(exported, b.root.ReadFile)
}
