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

// A stranger may register the name of a private package on a public index.
func TestSources_AreFollowed(t *testing.T) {
	uv := uv(t)
	public, private := t.TempDir(), t.TempDir()
	strangers := moon
	strangers.Version = "9.9"
	strangers.Write(t, public)
	moon.Write(t, private)
	main, more := wheeltest.Index(t, public).URL+"/simple", wheeltest.Index(t, private).URL+"/simple"
	tool := "[tool.uv.sources]\nmoon-phase = { index = \"private\" }\n" +
		"[[tool.uv.index]]\nname = \"private\"\nexplicit = true\nurl = \"" + more + "\"\n"
	block := ""
	for line := range strings.Lines("dependencies = [\"moon-phase\"]\n" + tool) {
		block += "# " + line
	}
	for _, job := range []struct {
		config string
		files  map[string]string
	}{
		{"", map[string]string{"app.py": "# /// script\n" + block + "# ///\n" + useMoon}},
		{"requirements = \"local/pyproject.toml\"", map[string]string{
			"app.py":         useMoon,
			"pyproject.toml": "[project]\nname = \"x\"\nversion = \"1\"\ndependencies = [\"moon-phase\"]\n" + tool,
		}},
	} {
		for _, may := range []bool{true, false} {
			a := start(t, func(c *Config) { c.IndexURL, c.Offline, c.JobIndexes = main, false, may }, with(uv))
			cfg := a.task("script = \"app.py\"\n"+job.config, job.files)
			if may {
				test.StrHasPrefix(t, "1.2 ", a.runs(cfg))
			} else if err := a.refused(cfg); !strings.Contains(err.Error(), "job_indexes") {
				t.Error(err)
			}
		}
	}
}

func TestUVLock_UsesItsIndexes(t *testing.T) {
	uv := uv(t)
	wheels, private := t.TempDir(), t.TempDir()
	older, newer := moon, moon
	older.Version, newer.Version = "1.0", "2.0"
	older.Write(t, wheels)
	moon.Write(t, private)
	newer.Write(t, wheels)
	wheeltest.Wheel{Name: "sun-spots", Version: "1.0"}.Write(t, wheels)
	main, more := wheeltest.Index(t, wheels).URL+"/simple", wheeltest.Index(t, private).URL+"/simple"
	const project = "[project]\nname = \"app\"\nversion = \"1\"\nrequires-python = \">=3.8\"\n" +
		"dependencies = [\"moon-phase\", \"sun-spots\"]\n" +
		"[tool.uv.sources]\nmoon-phase = { index = \"private\" }\n" +
		"[[tool.uv.index]]\nname = \"private\"\nexplicit = true\nurl = "
	files := map[string]string{"app.py": useMoon, "pyproject.toml": project + "\"" + more + "\"\n"}
	files["uv.lock"] = uvLock(t, uv, main, files["pyproject.toml"])
	for _, may := range []bool{true, false} {
		a := start(t, func(c *Config) { c.IndexURL, c.Offline, c.JobIndexes = main, false, may }, with(uv))
		cfg := a.task("script = \"app.py\"\nlock = \"local/uv.lock\"", files)
		if may {
			test.StrHasPrefix(t, "1.2 ", a.runs(cfg))
		} else if err := a.refused(cfg); !strings.Contains(err.Error(), "job_indexes") {
			t.Error(err)
		}
	}
}
