// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package newplugin

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

// checkout returns a copy of those parts of the repository that a new plugin needs.
func checkout(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, part := range []string{
		"go.work", "go.mod", "internal", "plugins/exec-lite", "plugins/dataset/go.mod", "plugins/python/go.mod",
		"plugins/remote/go.mod", "plugins/usb/go.mod", "lab/go.mod", "lab/build", "docs",
	} {
		to := filepath.Join(root, part)
		must.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		out, err := exec.Command("cp", "-r", filepath.Join("../..", part), to).CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
	}
	must.NoError(t, os.Chmod(filepath.Dir(root), 0o755)) // #nosec G302 -- tasks of other users traverse it
	return root
}

func TestCreate_MakesAPluginThatPassesItsTests(t *testing.T) {
	t.Setenv("GOFLAGS", "-trimpath") // lets Go use cached packages although the directory is new
	for kind, changed := range map[Kind]map[string]string{
		Driver: {"go.work": "\t./plugins/my-plugin\n", "docs/plugins/my-plugin.md": "| `script` | string | required |"},
		Device: {table: "\t\"my-plugin\": {Device: true},\n", "docs/plugins/my-plugin.md": "| `nodes` |"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			root := checkout(t)
			files, err := Create(t.Context(), root, kind, "my-plugin")
			must.NoError(t, err)
			for _, file := range files {
				must.FileExists(t, filepath.Join(root, file))
			}
			for file, text := range changed {
				b, err := os.ReadFile(filepath.Join(root, file))
				must.NoError(t, err)
				must.StrContains(t, string(b), text)
			}
			plugin := filepath.Join(root, "plugins/my-plugin")
			must.NoError(t, run(t.Context(), plugin, alone, "vet", "."))
			must.NoError(t, run(t.Context(), plugin, alone, "test", "."))
			unformatted, err := exec.Command("gofmt", "-l", plugin, filepath.Join(root, table)).CombinedOutput()
			must.NoError(t, err)
			must.Eq(t, "", string(unformatted))
		})
	}
}

func TestCreate_RefusesInvalidAndExistingNames(t *testing.T) {
	root := t.TempDir()
	must.NoError(t, os.MkdirAll(filepath.Join(root, "plugins/there"), 0o755))
	for name, want := range map[string]string{
		"there": "plugins/there already exists",
		"No":    "invalid plugin", "a/b": "invalid plugin", "a--b": "invalid plugin", "": "invalid plugin",
	} {
		_, err := Create(t.Context(), root, Driver, name)
		must.ErrorContains(t, err, want)
	}
}
