// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// fixture writes files below a temporary directory that replaces /sys/fs/cgroup, and returns its path. A name that ends
// in "/" is a directory.
func fixture(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		dir := filepath.Dir(path)
		if strings.HasSuffix(name, "/") {
			dir = path
		}
		must.NoError(t, os.MkdirAll(dir, 0o755))
		if dir == path {
			continue
		}
		must.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return root
}

// content returns the contents of files in dir, by name.
func content(t *testing.T, dir string, names ...string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name))
		must.NoError(t, err)
		out[name] = string(b)
	}
	return out
}
