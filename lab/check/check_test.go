// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// modules returns the directories of the workspace's modules. The first is the root, whose only package is the
// magefile.
func modules(ctx context.Context, root string) ([]string, error) {
	out, err := output(ctx, nil, root, "go", "list", "-m", "-f", "{{.Dir}}")
	return strings.Fields(out), err
}

// tracked returns the files that git tracks; if patterns are given, only the files that match one.
func tracked(ctx context.Context, root string, patterns ...string) ([]string, error) {
	out, err := output(ctx, nil, root, "git", append([]string{"ls-files", "-z", "--"}, patterns...)...)
	return strings.FieldsFunc(out, func(r rune) bool { return r == 0 }), err
}

// workspace creates a workspace with the modules m and lab and the given files, and returns its directory.
func workspace(t *testing.T, files map[string]string) string {
	t.Helper()
	t.Setenv("GOWORK", "")
	t.Setenv("GOFLAGS", "")
	root := t.TempDir()
	all := map[string]string{
		"go.work":    "go 1.26\n\nuse (\n\t./m\n\t./lab\n)\n",
		"m/go.mod":   "module x/m\n\ngo 1.26\n",
		"lab/go.mod": "module x/lab\n\ngo 1.26\n",
		"lab/l.go":   "package lab\n",
	}
	maps.Copy(all, files)
	for name, text := range all {
		path := filepath.Join(root, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

// pinnedWorkspace is like workspace, but also pins a tool at the version that this repository pins.
func pinnedWorkspace(t *testing.T, tool string, files map[string]string) string {
	t.Helper()
	all := map[string]string{"go.mod": "module x\n\ngo 1.26\n"}
	for _, name := range []string{"go.mod", "go.sum"} {
		name = ".ci/tools/" + tool + "/" + name
		text, err := os.ReadFile("../../" + name)
		must.NoError(t, err)
		all[name] = string(text)
	}
	maps.Copy(all, files)
	return workspace(t, all)
}

// captured calls do, and returns what do has written to standard output and standard error.
func captured(t *testing.T, do func()) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	must.NoError(t, err)
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = f, f
	defer func() { os.Stdout, os.Stderr = stdout, stderr }()
	do()
	text, err := os.ReadFile(f.Name())
	must.NoError(t, err)
	return string(text)
}
