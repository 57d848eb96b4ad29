// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

const shop = `
[build-system]
requires = ["hatchling"]
[project]
name = "Shop.Server"
version = "1"
requires-python = ">=3.9, <4"
dependencies = ["Flask[async] >= 2", "tomli ; python_version < '3.11'"]
[project.optional-dependencies]
Post_Gres = ["psycopg>=3"]
mail = ["aiosmtplib ; sys_platform == 'linux' or os_name == 'posix'"]
all = ["shop-server[post-gres, mail] ; python_version >= '3.10'"]
[dependency-groups]
Test = ["pytest", {include-group = "typing"}]
typing = ["mypy", "shop.server[mail]", {include-group = "test"}]
[tool.uv]
dev-dependencies = ["ruff"]
`

func TestProject_ReadsTheChosenDependencies(t *testing.T) {
	always := []string{"flask[async]>=2", `tomli ; python_version < "3.11"`}
	mail := `aiosmtplib ; sys_platform == "linux" or os_name == "posix"`
	for name, test := range map[string]struct {
		choice Choice
		more   []string
	}{
		"nothing more": {},
		"an extra":     {Choice{Extras: []string{"post.gres"}}, []string{"psycopg>=3"}},
		"its own extra": {Choice{Extras: []string{"all"}}, []string{`psycopg>=3 ; python_version >= "3.10"`,
			`aiosmtplib ; python_version >= "3.10" and (sys_platform == "linux" or os_name == "posix")`}},
		"groups": {Choice{Groups: []string{"test", "dev"}}, []string{"pytest", "mypy", mail, "ruff"}},
		"both":   {Choice{Extras: []string{"mail", "Mail"}, Groups: []string{"dev"}}, []string{mail, "ruff"}},
	} {
		s, err := test.choice.Project("local/pyproject.toml", in(map[string]string{"local/pyproject.toml": shop}))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := sorted(slices.Concat(always, test.more))
		if !slices.Equal(s.Lines, want) || s.RequiresPython != ">=3.9,<4" || s.Hashed || s.Complete {
			t.Errorf("%s: got %+v, want %q", name, s, want)
		}
	}
	s, err := Choice{Groups: []string{"a"}}.Project("pyproject.toml", inProject("[dependency-groups]\na = ['b']\n"))
	must.NoError(t, err, must.Sprintf("groups alone: %+v", s))
	test.SliceEqOp(t, []string{"b"}, s.Lines, test.Sprintf("groups alone: %+v", s))
}

func inProject(content string) Reader { return in(map[string]string{"pyproject.toml": content}) }

func TestProject_RefusesWhatCannotBeRead(t *testing.T) {
	project := "[project]\nname = 'app'\n"
	for content, says := range map[string]string{
		"[tool.poetry]\nname = 'x'": "no [project] table",
		"[project\n": "pyproject.toml:1: this is " +
			"not TOML",
		"[project]\ndependencies = 'x'":                    "not such a project",
		project + "dynamic = ['dependencies']":             "dynamic dependencies",
		project + "dependencies = ['x', '-r y.txt']":       "dependencies: ",
		project + "dependencies = ['x @ file:///x.whl']":   "of a path",
		project + "dependencies = ['${HOME}']":             "variables",
		project + "dependencies = ['x @ git+https://h/x']": "repository",
		project + "dependencies = ['My_Tool>=1']\n[tool.uv.sources]\nmy-tool={path='../x'}": `"my-tool" comes from ` +
			`where only uv looks`,
		project + "dependencies = ['app[gone]']": `has no extra "gone"`,
	} {
		_, err := Choice{}.Project("pyproject.toml", inProject(content))
		if err == nil || !strings.Contains(err.Error(), says) || !strings.HasPrefix(err.Error(), "pyproject.toml") {
			t.Errorf("%q: %v, not %q", content, err, says)
		}
	}
	for says, c := range map[string]Choice{
		`pyproject.toml has no extra "tset": there is all, mail, post-gres`:         {Extras: []string{"tset"}},
		`pyproject.toml has no dependency group "docs": there is dev, test, typing`: {Groups: []string{"docs"}},
	} {
		_, err := c.Project("pyproject.toml", inProject(shop))
		test.EqError(t, err, says)
	}
	for group, says := range map[string]string{
		"a = [1]": "no string", "a = [{include = 'b'}]": "include-group",
		"a = [{include-group = 'gone'}]": `no dependency group "gone"`,
	} {
		_, err := Choice{Groups: []string{"a"}}.Project("pyproject.toml", inProject("[dependency-groups]\n"+group))
		test.ErrorContains(t, err, says, test.Sprint(group))
	}
}

func TestProject_EndsWithCyclicGroups(t *testing.T) {
	var b strings.Builder
	b.WriteString("[dependency-groups]\ng0 = ['x']\n")
	last := "g0"
	for range 60 {
		next := last + "x"
		b.WriteString(next + " = [{include-group='" + last + "'}, {include-group='" + last + "'}]\n")
		last = next
	}
	s, err := Choice{Groups: []string{last}}.Project("pyproject.toml", inProject(b.String()))
	must.NoError(t, err, must.Sprintf("%+v", s))
	test.SliceEqOp(t, []string{"x"}, s.Lines, test.Sprintf("%+v", s))
}

func TestChoice_SelectsExtrasAndGroups(t *testing.T) {
	lock := lockWith("extras = ['Dev', 'mail']\ndependency-groups = ['docs', 'main']\ndefault-groups = ['main']\n" +
		wheelOf("always", "") + wheelOf("of-dev", `marker = "'dev' in extras and python_version > '3'"`) +
		wheelOf("of-docs", `marker = "'docs' in dependency_groups"`) + wheelOf("of-main",
		`marker = "'main' in dependency_groups"`) +
		wheelOf("not-dev", `marker = "'dev' not in extras"`) + wheelOf("old-way", `marker = "extra == 'mail'"`))
	for name, test := range map[string]struct {
		choice Choice
		want   string
	}{
		"nothing": {want: "always not-dev of-main"},
		"extras":  {Choice{Extras: []string{"dev", "Mail"}}, "always of-dev of-main old-way"},
		"group":   {Choice{Groups: []string{"DOCS"}}, "always not-dev of-docs of-main"},
	} {
		s, err := test.choice.Lock("pylock.toml", in(map[string]string{"pylock.toml": lock}))
		must.NoError(t, err)
		var names []string
		for _, l := range s.Lines {
			name, _, _ := strings.Cut(l, "==")
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
	files := map[string]string{
		"pylock.toml": lock, "uv.lock": "version = 1\n", "pyproject.toml": shop,
		"app.py.lock": "version = 1\n", "app.py": "", "r.txt": "a==1 --hash=" + hashOf("a"),
	}
	for name, says := range map[string]string{
		"pylock.toml": `pylock.toml has no extra "gone": there is dev, mail`,
		"uv.lock":     `pyproject.toml has no extra "gone": there is all, mail, post-gres`,
		"app.py.lock": "no extras and groups to choose", "r.txt": "no extras and groups to choose",
	} {
		_, err := Choice{Extras: []string{"gone"}}.Lock(name, in(files))
		test.ErrorContains(t, err, says, test.Sprint(name))
	}
	choice := Choice{Extras: []string{"Post_gres", "mail"}, Groups: []string{"dev"}}
	s, err := choice.Lock("uv.lock", in(files))
	want := Choice{Extras: []string{"mail", "post-gres"}, Groups: []string{"dev"}}
	must.NoError(t, err, must.Sprintf("%+v", s))
	test.Eq(t, want, s.UVLock.Choice, test.Sprintf("%+v", s))
}

func TestProject_EndsWithCyclicExtras(t *testing.T) {
	app := func(extras string) Reader {
		return inProject("[project]\nname = 'app'\n[project.optional-dependencies]\n" + extras)
	}
	for extras, want := range map[string][]string{
		"all = [\"app[all] ; python_version > '3'\", 'x']":                          {"x"},
		"all = ['app[mail]', 'x']\nmail = [\"App[all] ; os_name == 'posix'\", 'y']": {"x", "y"},
		"all = [\"app[mail] ; os_name == 'posix'\", 'app[all]']\nmail = ['y', 'app[all]', 'app[Mail]']": {
			`y ; os_name == "posix"`},
	} {
		s, err := Choice{Extras: []string{"all"}}.Project("pyproject.toml", app(extras))
		must.NoError(t, err, must.Sprintf("%s: %+v", extras, s))
		test.SliceEqOp(t, want, s.Lines, test.Sprintf("%s: %+v", extras, s))
	}
	chain := func(length int, requirements, last string) string { // each extra has the next
		var b strings.Builder
		b.WriteString("all = ['app[e0]']\n")
		for i := range length {
			fmt.Fprintf(&b, "e%d = %s\n", i, strings.ReplaceAll(requirements, "NEXT", fmt.Sprintf("e%d", i+1)))
		}
		fmt.Fprintf(&b, "e%d = ['%s']\n", length, last)
		return b.String()
	}
	long := strings.Repeat("os_name == 'posix' and ", 50) + "os_name == 'posix'"
	for says, extras := range map[string]string{
		"there is more than a program can require": chain(20,
			"[\"app[NEXT] ; os_name == 'a'\", \"app[NEXT] ; os_name == 'b'\"]", "x"),
		"extra all: \"app[e0] ; os_name == 'posix' and": "all = [\"app[e0] ; " + strings.Repeat(long+" and ",
			4) + long + "\"]",
		"with those of the extras around it, is longer than": chain(9, "[\"app[NEXT] ; "+long+"\"]", "x"),
		"pyproject.toml: extra e40: ":                        chain(40, "['app[NEXT]']", "x ! 1"), // said once
	} {
		_, err := Choice{Extras: []string{"all"}}.Project("pyproject.toml", app(extras))
		if err == nil || !strings.Contains(err.Error(), says) || strings.Count(err.Error(), "pyproject.toml") != 1 {
			t.Errorf("%v, not %q", err, says)
		}
	}
}

// Extras that require nothing take room as well: 70 lines of this project would take gigabytes.
func TestProject_CountsEmptyExtras(t *testing.T) {
	var text strings.Builder
	text.WriteString("[project]\nname='app'\n[project.optional-dependencies]\n")
	var names []string
	for i := range 400 {
		names = append(names, fmt.Sprintf("e%d", i))
		fmt.Fprintf(&text, "e%d=[]\n", i)
	}
	text.WriteString("all=[\n")
	for i := range 70 {
		fmt.Fprintf(&text, "\"app[%s] ; platform_release != '%d'\",\n", strings.Join(names, ","), i)
	}
	text.WriteString("]\n")
	_, err := Choice{Extras: []string{"all"}}.Project("pyproject.toml",
		func(string) ([]byte, error) { return []byte(text.String()), nil })
	test.ErrorContains(t, err, "there is more than a program can require")
}
