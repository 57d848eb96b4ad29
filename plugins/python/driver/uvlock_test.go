// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/wheel/wheeltest"
)

func TestUVLock_InstallsWhatIsLocked(t *testing.T) {
	uv := uv(t)
	wheels := t.TempDir()
	moon.Write(t, wheels)
	index := wheeltest.Index(t, wheels)
	const project = "[project]\nname = \"app\"\nversion = \"1\"\nrequires-python = \">=3.8\"\n" +
		"dependencies = [\"moon-phase\"]\n"
	files := map[string]string{
		"app.py": useMoon, "pyproject.toml": project, "uv.lock": uvLock(t, uv, index.URL+"/simple", project),
	}
	// what came since is not in the lock
	later := moon
	later.Version = "1.3"
	later.Write(t, wheels)

	config := "script = \"app.py\"\nlock = \"local/uv.lock\"\nindex_url = \"" + index.URL + "/simple\""
	a := start(t, func(c *Config) { c.Offline = false }, with(uv))
	test.StrHasPrefix(t, "1.2 ", a.runs(a.task(config, files)))

	// another wheel of that name and version is not what was locked
	other := moon
	other.Files = map[string]string{"planted.py": ""}
	other.Write(t, wheels)
	a = start(t, func(c *Config) { c.Offline = false }, with(uv))
	if err := a.refused(a.task(config, files)); !strings.Contains(err.Error(), "ash mismatch for `") {
		t.Error(err)
	}
}

// The lock names the node's index without credentials.
func TestUVLock_UsesTheNodesCredentials(t *testing.T) {
	uv := uv(t)
	wheels := t.TempDir()
	moon.Write(t, wheels)
	url := private(t, wheels, "hunter2")
	with := strings.Replace(url, "://", "://build:hunter2@", 1)
	const project = "[project]\nname = \"app\"\nversion = \"1\"\nrequires-python = \">=3.8\"\n" +
		"dependencies = [\"moon-phase\"]\n"
	files := map[string]string{"app.py": useMoon, "pyproject.toml": project, "uv.lock": uvLock(t, uv, with, project)}
	must.StrNotContains(t, files["uv.lock"], "hunter2")
	withUV(t, func(t *testing.T, a *agent) {
		test.StrHasPrefix(t, "1.2 ", a.runs(a.task("script = \"app.py\"\nlock = \"local/uv.lock\"", files)))
	}, func(c *Config) { c.IndexURL, c.Offline, c.JobIndexes = with, false, false })
}
