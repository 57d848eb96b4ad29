// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

const project = `
[project]
name = "shop"
version = "3"
requires-python = ">=3.9"
dependencies = ["flask>=2"]
[project.optional-dependencies]
mail = ["mail-post"]
all = ["shop[mail]"]
[dependency-groups]
dev = ["pytest", {include-group = "lint"}]
lint = ["ruff"]
[build-system]
requires = ["evil"]
[tool.uv]
constraint-dependencies = ["flask<4"]
override-dependencies = ["werkzeug==3"]
exclude-newer = "2026-01-01T00:00:00Z"
compile-bytecode = true
[tool.uv.sources]
mail-post = [{ index = "private", marker = "os_name == 'posix'" }]
[[tool.uv.index]]
name = "private"
url = "https://host/simple"
explicit = true
`

func TestProject_DropsTheBuildSystemAndSettings(t *testing.T) {
	c := Choice{Extras: []string{"all"}, Groups: []string{"dev"}}
	s, err := c.Project("local/pyproject.toml", in(map[string]string{"local/pyproject.toml": project}))
	must.NoError(t, err)
	must.SliceLen(t, 1, s.Projects)
	must.Eq(t, c, s.Projects[0].Choice)
	must.Eq(t, ">=3.9", s.RequiresPython)
	must.Eq(t, []string{"flask<4"}, s.Constraints)
	must.Eq(t, []string{"werkzeug==3"}, s.Overrides)
	must.Eq(t, "2026-01-01T00:00:00Z", s.NewerThan)
	must.True(t, s.Names)
	text := string(s.Projects[0].Text)
	for _, has := range []string{"flask>=2", "shop[mail]", "include-group", "https://host/simple", "explicit"} {
		test.StrContains(t, text, has)
	}
	for _, hasNot := range []string{"build-system", "evil", "compile-bytecode", "version = '3'"} {
		test.StrNotContains(t, text, hasNot)
	}
}

func TestProject_ErrorsNameFileAndReason(t *testing.T) {
	const head = "[project]\nname = 'a'\nversion = '1'\n"
	for text, says := range map[string]string{
		"":                                    "no [project] table",
		"[tool.poetry.dependencies]\na = '1'": "no [project] table",
		head + "dynamic = ['dependencies']":   "dependencies are dynamic",
		head + "dependencies = ['x @ file:///x']":                      "build a wheel",
		head + "dependencies = ['x @ git+https://h/x']":                "build a wheel",
		head + "[project.optional-dependencies]\nx = ['./y']":          "not a package requirement",
		head + "[dependency-groups]\nx = ['./y']":                      "not a package requirement",
		head + "[tool.uv]\noverride-dependencies = ['x @ file:///x']":  "build a wheel",
		head + "[tool.uv.sources]\nx = {path = '/x', editable = true}": "source tree",
		head + "[tool.uv.sources]\nx = {workspace = true}":             "workspace in tool.uv.sources",
		head + "[tool.uv.sources]\nx = [{git = 'https://h/x'}]":        "git in tool.uv.sources",
		head + "[tool.uv.sources]\nx = {url = 'https://h/x.tar.gz'}":   "not the URL of a wheel",
		head + "dependencies = 'x'":                                    "not valid TOML",
	} {
		s, err := Choice{}.Project("p/pyproject.toml", in(map[string]string{"p/pyproject.toml": text}))
		test.ErrorContains(t, err, "p/pyproject.toml", test.Sprintf("%s: %+v", text, s))
		test.ErrorContains(t, err, says, test.Sprint(text))
	}
}
