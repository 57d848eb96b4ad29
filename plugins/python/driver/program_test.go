// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/zip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/python/install"
)

const greet = "import sys\nprint('hello', *sys.argv[1:])\n"

func zipApp(t *testing.T) string {
	t.Helper()
	var zipped strings.Builder
	z := zip.NewWriter(&zipped)
	f, err := z.Create("__main__.py")
	must.NoError(t, err)
	_, err = f.Write([]byte(greet))
	must.NoError(t, err)
	must.NoError(t, z.Close())
	return zipped.String()
}

func TestProgram_RunsEachKindWithItsArguments(t *testing.T) {
	a := start(t)
	zipped := zipApp(t)
	files := map[string]string{
		"app.py": greet, "dir/__main__.py": greet, "app.pyz": zipped,
		"exe.pex": "#!/usr/bin/env python3\n" + zipped,
		"-odd.py": greet, "package/__init__.py": "", "package/cli.py": greet,
	}
	for name, config := range map[string]string{
		"script in local":     `script = "app.py"`,
		"script by its path":  `script = "local/app.py"`,
		"absolute script":     ``,
		"directory":           `script = "dir"`,
		"zip application":     `script = "local/app.pyz"`,
		"name like an option": "script = \"-odd.py\"\nwork_dir = \"local\"",
		"module":              "module = \"package.cli\"\nwork_dir = \"local\"",
		"inline code":         `code = "import sys\nprint('hello', *sys.argv[1:])"`,
	} {
		if name == "absolute script" {
			other := a.task(`script = "app.py"`, files)
			config = "script = \"" + filepath.Join(other.TaskDir().LocalDir, "app.py") + "\""
		}
		test.Eq(t, "hello one --two\n", a.runs(a.task(config+"\nargs = [\"one\", \"--two\"]", files)),
			test.Sprint(name))
	}
}

func TestCommand_PassesInterpreterOptions(t *testing.T) {
	a := start(t)
	const show = "import faulthandler, sys\nf = sys.flags\n" +
		"print(int(sys.stdout.write_through), f.isolated, f.dev_mode, sys.warnoptions, " +
		"faulthandler.is_enabled(), *sys.argv[1:])\n"
	for config, want := range map[string]string{
		``:                          "1 0 False [] True",
		`unbuffered = false`:        "0 0 False [] True",
		`interpreter_args = ["-I"]`: "1 1 False [] True",
		`interpreter_args = ["-X", "dev", "-W", "ignore"]`: "1 0 True ['default', 'ignore'] True",
	} {
		config += "\nscript = \"app.py\"\nargs = [\"-X\"]"
		test.Eq(t, want+" -X\n", a.runs(a.task(config, map[string]string{"app.py": show})), test.Sprint(config))
	}
}

func TestCommand_UsesConfiguredInterpreters(t *testing.T) {
	a := start(t, func(c *Config) { c.Interpreters = []string{filepath.Join(filepath.Dir(c.StateDir), "*/bin")} })
	err := a.refused(a.task(`code = "1"`, nil))
	must.StrContains(t, err.Error(), "this node has no Python interpreter that tasks can run")
	own := filepath.Join(a.dir, "own/bin/python3")
	must.NoError(t, os.MkdirAll(filepath.Dir(own), 0o755))
	must.NoError(t, os.Symlink("/usr/bin/python3", own))
	real, err := filepath.EvalSymlinks(own)
	must.NoError(t, err)
	test.Eq(t, real+"\n", a.runs(a.task(`code = "import sys; print(sys.executable)"`, nil)), test.Sprint("it runs with"))
}

func TestCommand_CombinesAllVersionConstraints(t *testing.T) {
	a := start(t)
	const lock = "version = 1\nrequires-python = \">=4\"\n"
	const pyproject = "[project]\nname = \"shop\"\nversion = \"1\"\n"
	script := "# /// script\n# requires-python = \">=3.99\"\n# ///\n"
	for config, want := range map[string]string{
		"script = \"app.py\"\nlock = \"local/uv.lock\"":   "the project's or lock's requires-python >=4",
		"script = \"new.py\"":                             "the script's requires-python >=3.99",
		"code = \"1\"\npython = \">=3.8,<3.9 , !=3.8.1\"": "python >=3.8,<3.9 , !=3.8.1",
		"code = \"1\"\npython = \"^3.11\"":                "\">=3.11,<3.14\"",
		"code = \"1\"\npython = \"local/python3\"":        "is not a version specifier",
		"code = \"1\"\npython = \"3.11/../../tmp\"":       "is not a version specifier",
		"code = \"1\"\npython = \"--help\"":               "is not a version specifier",
	} {
		err := a.refused(a.task(config, map[string]string{"app.py": "", "uv.lock": lock,
			"pyproject.toml": pyproject, "new.py": script}))
		test.StrContains(t, err.Error(), want, test.Sprintf("%s: %v", config, err))
	}
	for _, python := range []string{">=3.8", "cpython", "~=3.8 , <4", "3"} {
		config := "code = \"import sys; print(sys.implementation.name)\"\npython = \"" + python + "\""
		test.Eq(t, "cpython\n", a.runs(a.task(config, nil)), test.Sprint(python))
	}
}

func TestVersionsOf_OmitsMinorVersionsOfPreReleases(t *testing.T) {
	var all []install.Python
	for _, version := range []string{"3.15.0rc1", "3.13.2", "3.11.9", "3.11.2"} {
		all = append(all, install.Python{Version: version})
	}
	test.Eq(t, "3.11,3.13,3.11.2,3.11.9,3.13.2,3.15.0rc1", versionsOf(all))
}

func TestTaskConfig_ErrorsAreOneSentence(t *testing.T) {
	a := start(t)
	for config, want := range map[string]string{
		``:                                  "nothing to run",
		"script = \"a.py\"\nmodule = \"b\"": "mutually exclusive",
		`script = "missing.py"`:             `"missing.py" is neither at`,
		"code = \"1\"\nrequirements = [\"x\"]\nlock = \"l\"":               "mutually exclusive",
		"code = \"1\"\nrequirements = [\"x\"]\nfind_links = [\"nowhere\"]": `"nowhere" is neither at`,
		"code = \"1\"\nrequirements = \"local/gone.txt\"":                  "local/gone.txt",
		"code = \"1\"\nrequirements = [\"-e .\"]":                          "-e",
		"code = \"1\"\nrequirements = \"\"":                                "empty",
		"script = \"a.py\"\nwork_dir = \"../../../../../../../../etc\"":    "is neither at /etc",
	} {
		cfg := a.task(config, map[string]string{"empty/x": ""})
		err := a.refused(cfg)
		must.StrContains(t, err.Error(), want, must.Sprintf("%s\n: %v", config, err))
		test.StrNotContains(t, strings.TrimSpace(err.Error()), "\n\n", test.Sprintf("%s\n: %v", config, err))
	}
}

func TestProgram_WritesInlineCodeToAFile(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t)
	cfg := a.task(`code = "import os, stat\nprint(__file__, oct(os.stat(__file__).st_mode), os.stat(__file__).st_uid `+
		`== os.getuid())"`, nil)
	secret := filepath.Join(a.dir, "secret")
	must.NoError(t, os.WriteFile(secret, []byte("keep"), 0o600))
	// a user who can write to the directory local could plant a link in it
	must.NoError(t, os.Symlink(secret, filepath.Join(cfg.TaskDir().LocalDir, "inline_code.py")))
	test.StrHasSuffix(t, "local/inline_code.py 0o100600 True\n", a.runs(cfg))
	b, _ := os.ReadFile(secret)
	test.Eq(t, "keep", string(b), test.Sprintf("code was written through a link: %q", b))
	// such a user could also replace the directory local with a link to another directory that the task can write to
	outside := filepath.Join(a.dir, "outside")
	must.NoError(t, errors.Join(os.Mkdir(outside, 0o777), os.Chmod(outside, 0o777)))
	cfg = a.task(`code = "1"`, nil)
	must.NoError(t, errors.Join(os.RemoveAll(cfg.TaskDir().LocalDir), os.Symlink(outside, cfg.TaskDir().LocalDir)))
	test.ErrorContains(t, a.refused(cfg), "failed to write code")
	test.FileNotExists(t, filepath.Join(outside, "inline_code.py"))
}
