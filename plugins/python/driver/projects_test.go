// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel/wheeltest"
)

const shopProject = `[project]
name = "shop"
version = "1"
requires-python = ">=3.8"
dependencies = ["moon-phase"]
[project.optional-dependencies]
mail = ["mail-post"]
[dependency-groups]
test = ["test-tool"]
dev = ["dev-tool"]
`

// found prints which packages of shopProject are installed.
const found = `import importlib.util as u
print(*[n for n in ("moon_phase", "mail_post", "test_tool", "dev_tool", "shop") if u.find_spec(n)])
`

// shopWheels writes the wheels of its packages. There is none of the project itself.
func shopWheels(t *testing.T, dir string) {
	for _, name := range []string{"moon-phase", "mail-post", "test-tool", "dev-tool"} {
		wheeltest.Wheel{Name: name, Version: "1.2"}.Write(t, dir)
	}
}

func TestProject_InstallsTheChosenDependencies(t *testing.T) {
	testsupport.Long(t, "tables of many builds")
	withUV(t, func(t *testing.T, a *agent) {
		for chosen, want := range map[string]string{
			"":                            "moon_phase",
			`extras = ["Mail"]`:           "moon_phase mail_post",
			`dependency_groups = ["dev"]`: "moon_phase dev_tool",
			"extras = [\"mail\"]\ndependency_groups = [\"test\", \"dev\"]": "moon_phase mail_post test_tool dev_tool",
		} {
			const config = "script = \"app.py\"\nrequirements = \"local/pyproject.toml\"\nfind_links = [\"local/wheels\"]\n"
			cfg := a.task(config+chosen, map[string]string{"app.py": found, "pyproject.toml": shopProject})
			shopWheels(t, filepath.Join(cfg.TaskDir().LocalDir, "wheels"))
			out := a.runs(cfg)
			test.Eq(t, want, strings.TrimSpace(out), test.Sprintf("%q: got %q", chosen, out))
		}
	})
	a := start(t, with(uv(t)))
	for chosen, says := range map[string]string{
		`requirements = "local/pyproject.toml"
			find_links = ["local"]
			extras = ["gone"]`: "not found: gone",
		"requirements = [\"moon-phase\"]\nextras = [\"mail\"]":      "extras and dependency_groups are a project's",
		"requirements = \"local/pyproject.toml\"\npython = \"3.7\"": "python ",
	} {
		files := map[string]string{"app.py": found, "pyproject.toml": shopProject}
		err := a.refused(a.task("script = \"app.py\"\n"+chosen, files))
		test.StrContains(t, err.Error(), says, test.Sprintf("%s: %v", chosen, err))
	}
}

func TestUVLock_InstallsTheChosenDependencies(t *testing.T) {
	testsupport.Long(t, "tables of many builds")
	uv := uv(t)
	wheels := t.TempDir()
	shopWheels(t, wheels)
	index := wheeltest.Index(t, wheels)
	files := map[string]string{
		"app.py": found, "pyproject.toml": shopProject, "uv.lock": uvLock(t, uv, index.URL+"/simple", shopProject),
	}
	a := start(t, func(c *Config) { c.Offline = false }, with(uv))
	for chosen, want := range map[string]string{
		"":                             "moon_phase",
		`extras = ["mail"]`:            "moon_phase mail_post",
		`dependency_groups = ["dev"]`:  "moon_phase dev_tool",
		`dependency_groups = ["test"]`: "moon_phase test_tool",
	} {
		config := fmt.Sprintf("script = \"app.py\"\nlock = \"local/uv.lock\"\nindex_url = \"%s/simple\"\n", index.URL)
		cfg := a.task(config+chosen, maps.Clone(files))
		out := a.runs(cfg)
		test.Eq(t, want, strings.TrimSpace(out), test.Sprintf("%q: got %q", chosen, out))
	}
	err := a.refused(a.task("script = \"app.py\"\nlock = \"local/uv.lock\"\ndependency_groups = [\"gone\"]", files))
	test.StrContains(t, err.Error(), "`gone`", test.Sprint(err))
}
