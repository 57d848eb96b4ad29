// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package newplugin creates a new plugin in this repository: a module that builds, passes its tests, and is loaded by
// the next lab.
package newplugin

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
)

// Kind is the kind of a plugin, and the name of its folder of templates.
type Kind string

// The kinds of plugins.
const (
	Driver Kind = "driver"
	Device Kind = "device"
)

//go:embed driver device
var templates embed.FS

// names matches names that can be used for a file, for a job's driver or device block, and in an environment variable.
var names = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

// Create creates plugins/<name>, its page in docs and its entry in the workspace. It returns the paths of the new files
// in the repository. After an error, git shows the files that were created.
func Create(ctx context.Context, root string, kind Kind, name string) (files []string, err error) {
	dir := filepath.Join("plugins", name)
	page := filepath.Join("docs", "plugins", name+".md")
	if !names.MatchString(name) {
		return nil, fmt.Errorf("invalid plugin name %q: use lower-case letters, digits and single hyphens", name)
	}
	for _, path := range []string{dir, page} {
		if _, err := os.Lstat(filepath.Join(root, path)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s already exists: remove it or choose another name", path)
		}
	}
	write := func(path string, text []byte) error {
		files = append(files, path)
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(root, path), text, 0o644)
	}
	if err := render(kind, name, func(file string, text []byte) error {
		if file == "docs.md" {
			return write(page, text)
		}
		return write(filepath.Join(dir, file), text)
	}); err != nil {
		return nil, err
	}
	// copy the files of exec-lite, so every dependency has the same version in all plugins
	for _, file := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(root, "plugins", "exec-lite", file))
		if err != nil {
			return nil, err
		}
		b = bytes.ReplaceAll(b, []byte("plugins/exec-lite"), []byte("plugins/"+name))
		if err := write(filepath.Join(dir, file), b); err != nil {
			return nil, err
		}
	}
	if kind == Device { // drivers need no line in the table
		if err := declare(filepath.Join(root, table), name); err != nil {
			return nil, err
		}
	}
	if err := run(ctx, root, nil, "work", "use", "./"+dir); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"mod", "tidy"},
		{"test", "-run=TestDocs_HaveTheOptions", ".", "-update"},
	} {
		if err := run(ctx, filepath.Join(root, dir), alone, args...); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// render renders the templates of a kind, and calls write with each file.
func render(kind Kind, name string, write func(file string, text []byte) error) error {
	data := struct{ Name, Env string }{name, strings.ToUpper(strings.ReplaceAll(name, "-", "_"))}
	return fs.WalkDir(templates, string(kind), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		t, err := template.ParseFS(templates, path)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := t.Execute(&text, data); err != nil {
			return err
		}
		return write(strings.TrimSuffix(strings.TrimPrefix(path, string(kind)+"/"), ".tmpl"), text.Bytes())
	})
}

// table is the source file in which the lab declares plugins, unless the name of a plugin's folder is enough.
const table = "lab/build/plugins.go"

// declare adds a device plugin to the table in file.
func declare(file, name string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	const line = "var declared = map[string]Plugin{\n"
	if strings.Count(string(old), line) != 1 {
		return fmt.Errorf("failed to add the plugin to %s: the file needs exactly one line %q", file, strings.TrimSpace(line))
	}
	added := fmt.Sprintf("%s\t%q: {Device: true},\n", line, name)
	text, err := format.Source([]byte(strings.Replace(string(old), line, added, 1)))
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// alone is the environment in which the go command ignores the workspace, as in a release of the new module.
var alone = []string{"GOWORK=off"}

// run runs the go command.
func run(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
