// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// Changed lists the modules with packages, by their folders in the repository, whose tests concern what changed since
// HEAD left another revision. Without a revision these are all.
func Changed(ctx context.Context, root, since string) ([]string, error) {
	modules, err := workspaceModules(ctx, root)
	if err != nil {
		return nil, err
	}
	if since == "" {
		return concerned(modules, []string{"go.work"}), nil
	}
	out, err := output(ctx, nil, root, "git", "diff", "--name-only", "--no-renames", "-z", since+"...HEAD")
	if err != nil {
		return nil, fmt.Errorf("failed to find what changed since %s: %w\n%s", since, err, out)
	}
	return concerned(modules, strings.FieldsFunc(out, func(r rune) bool { return r == 0 })), nil
}

// module is one of go.work. That of the root has no packages.
type module struct {
	dir      string // in the repository
	path     string // for import
	requires []string
}

func workspaceModules(ctx context.Context, root string) ([]module, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	dirs, err := Modules(ctx, root)
	if err != nil {
		return nil, err
	}
	var modules []module
	for _, dir := range dirs {
		name := filepath.Join(dir, "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := modfile.Parse(name, text, nil)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			return nil, err
		}
		m := module{dir: rel, path: file.Module.Mod.Path}
		for _, r := range file.Require {
			m.requires = append(m.requires, r.Mod.Path)
		}
		modules = append(modules, m)
	}
	return modules, nil
}

// concerned are the modules that some files belong to, and those that require one of them. A page of docs belongs to
// the lab, which runs its commands, and to the plugin of its name, whose options it lists. What else is in no module
// but the root's (go.work, .ci, the magefile, the workflows) concerns all.
func concerned(modules []module, files []string) []string {
	hit := map[string]bool{} // by import path
	for _, file := range files {
		var owner *module
		for i, m := range modules {
			inside := m.dir != "." && strings.HasPrefix(file, m.dir+"/")
			if inside && (owner == nil || len(m.dir) > len(owner.dir)) {
				owner = &modules[i]
			}
		}
		plugin := "plugins/" + strings.TrimSuffix(path.Base(file), ".md")
		for _, m := range modules {
			switch {
			case owner != nil:
				hit[m.path] = hit[m.path] || m.path == owner.path
			case path.Ext(file) == ".md":
				hit[m.path] = hit[m.path] || m.dir == "lab" || m.dir == plugin
			default:
				hit[m.path] = true
			}
		}
	}
	for again := true; again; {
		again = false
		for _, m := range modules {
			if !hit[m.path] && slices.ContainsFunc(m.requires, func(path string) bool { return hit[path] }) {
				hit[m.path], again = true, true
			}
		}
	}
	dirs := []string{} // which is [] as JSON
	for _, m := range modules {
		if hit[m.path] && m.dir != "." {
			dirs = append(dirs, m.dir)
		}
	}
	return dirs
}
