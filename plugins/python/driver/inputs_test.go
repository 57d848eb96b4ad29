// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel/wheeltest"
)

const installed = "import importlib.metadata as m\n" +
	"print(*sorted(d.metadata['Name'] + '==' + d.version for d in m.distributions()))\n"

// input is one way in which a job can declare its requirements.
type input struct {
	name   string
	config string            // the task's options, without script = "app.py"
	files  map[string]string // the task's files; the default app.py prints the installed packages
	want   string            // the installed packages, as app.py prints them
	says   string            // a part of the error; empty if the task must run
	names  bool              // the input names an index or a page, which a node can refuse (job_indexes)
}

// asScript returns an app.py with these lines as its inline metadata (PEP 723).
func asScript(lines string) string {
	block := "# /// script\n"
	for line := range strings.Lines(lines) {
		block += "# " + line
	}
	return block + "# ///\n" + installed
}

// project returns a pyproject.toml with these elements in its list of dependencies, and with more lines at the end.
func project(dependencies, more string) string {
	return "[project]\nname = \"shop\"\nversion = \"1\"\nrequires-python = \">=3.8\"\n" +
		"dependencies = [" + dependencies + "]\n" + more
}

// Each input is installed, or refused with an error that names what to write instead. The public index also has a newer
// moon-phase, by another author, which no task may get.
func TestInputs_AreInstalledOrRefused(t *testing.T) {
	open, private := t.TempDir(), t.TempDir()
	strangers := moon
	strangers.Version = "9.9"
	strangers.Write(t, open)
	one := wheeltest.Wheel{Name: "sun-spots", Version: "1.0"}.Write(t, open)
	wheeltest.Wheel{Name: "sun-spots", Version: "2.0"}.Write(t, open)
	wheeltest.Wheel{Name: "mail-post", Version: "1.2"}.Write(t, open)
	wheeltest.Wheel{Name: "test-tool", Version: "1.2", Requires: []string{"sun-spots>=2"}}.Write(t, open)
	moon.Write(t, private)
	wheeltest.Wheel{Name: "torch-lite", Version: "2.0+cpu"}.Write(t, private)
	public, ours := wheeltest.Index(t, open).URL+"/simple", wheeltest.Index(t, private).URL+"/simple"

	const byProject, byFile = `requirements = "local/pyproject.toml"`, `requirements = "local/r.txt"`
	const byLock = `lock = "local/uv.lock"`
	sources := "[tool.uv.sources]\nmoon-phase = { index = \"ours\" }\n[[tool.uv.index]]\nname = \"ours\"\n" +
		"explicit = true\nurl = \"" + ours + "\"\n"
	optional := "[project.optional-dependencies]\nmail = [\"mail-post\"]\n[dependency-groups]\ntest = [\"test-tool\"]\n" +
		"dev = [\"moon-phase\"]\n"
	file := func(text string) map[string]string { return map[string]string{"r.txt": text} }
	pyproject := func(dependencies, more string) map[string]string {
		return map[string]string{"pyproject.toml": project(dependencies, more)}
	}
	declared := asScript("dependencies = [\"sun-spots<2\"]\n")
	table := []input{
		{name: "list", config: `requirements = ["Sun_Spots < 2"]`, want: "sun-spots==1.0"},
		{name: "list in a file", config: byFile, files: file("# all\nsun-spots <2 # one\n"), want: "sun-spots==1.0"},
		{name: "list with hashes", config: byFile, files: file("sun-spots==1.0 \\\n  --hash=sha256:" + one + "\n"),
			want: "sun-spots==1.0"},
		{name: "locked list", config: `lock = "r.txt"`, files: file("sun-spots==1.0 --hash=sha256:" + one + "\n"),
			want: "sun-spots==1.0"},
		{name: "locked list, another file", config: `lock = "r.txt"`,
			files: file("sun-spots==2.0 --hash=sha256:" + one + "\n"), says: "ash mismatch"},
		{name: "list with another index", config: byFile, files: file("-i " + ours + "\nmoon-phase\n"),
			want: "moon-phase==1.2", names: true},
		{name: "list with an extra index", config: byFile, files: file("--extra-index-url " + ours + "\nmoon-phase\n"),
			want: "moon-phase==1.2", names: true},
		{name: "the job's extra index", config: "requirements = [\"moon-phase\"]\nextra_index_urls = [\"" + ours + "\"]",
			want: "moon-phase==1.2", names: true},
		{name: "an index without https", config: "requirements = [\"sun-spots\"]\nindex_url = \"pypi.org/simple\"",
			says: "https://host/path"},
		{name: "a version that the first index does not have", says: "moon-phase>=2",
			config: "requirements = [\"moon-phase>=2\"]\nextra_index_urls = [\"" + ours + "\"]"},
		{name: "a constraint", config: byFile, want: "sun-spots==1.0",
			files: map[string]string{"r.txt": "-c c.txt\nsun-spots\n", "c.txt": "sun-spots<2\n"}},
		{name: "markers", config: byFile, want: "mail-post==1.2",
			files: file("sun-spots==1.0 ; python_version < \"3\"\nmail-post ; os_name == \"posix\"\n")},
		{name: "a pin for Windows", config: byFile, want: "sun-spots==1.0",
			files: file("pywin32==306 ; sys_platform == \"win32\"\nsun-spots==1.0\n")},
		{name: "a pin for Windows without a marker", config: byFile, files: file("pywin32==306\n"), says: "pywin32"},
		{name: "torch's index of CPU wheels", config: byFile, want: "torch-lite==2.0+cpu", names: true,
			files: file("--extra-index-url " + ours + "\ntorch-lite==2.0+cpu\n")},
		{name: "UTF-16", config: byFile, files: file("\xff\xfes\x00u\x00n\x00"), says: "local/r.txt:1: the text is not UTF"},
		{name: "a file from conda", config: byFile, files: file("numpy @ file:///home/conda/numpy\n"), says: "build a wheel"},
		{name: "editable", config: byFile, files: file("-e .\n"), says: "local/r.txt:1: -e is not supported, because"},

		{name: "script", config: "", files: map[string]string{"app.py": declared},
			want: "sun-spots==1.0"},
		{name: "script with sources", config: "", want: "moon-phase==1.2", names: true,
			files: map[string]string{"app.py": asScript("dependencies = [\"moon-phase\"]\n" + sources)}},
		{name: "code", config: "code = <<EOT\n" + declared + "EOT\n",
			want: "sun-spots==1.0"},
		{name: "script and hashes", config: byFile, files: map[string]string{"app.py": declared,
			"r.txt": "sun-spots==1.0 --hash=sha256:" + one + "\n"}, says: "but the script's requirements can't"},
		{name: "script and list", config: `requirements = ["mail-post"]`, want: "mail-post==1.2 sun-spots==1.0",
			files: map[string]string{"app.py": declared}},

		{name: "project", config: byProject, files: pyproject(`"sun-spots<2"`, optional), want: "sun-spots==1.0"},
		{name: "project with an extra and a group", want: "mail-post==1.2 sun-spots==2.0 test-tool==1.2",
			config: byProject + "\nextras = [\"Mail\"]\ndependency_groups = [\"test\"]",
			files:  pyproject(`"sun-spots"`, optional)},
		{name: "project without that extra", config: byProject + "\nextras = [\"gone\"]",
			files: pyproject(`"sun-spots"`, optional), says: "not found: gone"},
		{name: "an extra of a list", config: "requirements = [\"sun-spots\"]\nextras = [\"x\"]", says: "need a project"},
		{name: "project with an explicit index", config: byProject, files: pyproject(`"moon-phase", "mail-post"`, sources),
			want: "mail-post==1.2 moon-phase==1.2", names: true},
		{name: "project with a constraint", config: byProject, want: "sun-spots==1.0",
			files: pyproject(`"sun-spots"`, "[tool.uv]\nconstraint-dependencies = [\"sun-spots<2\"]\n")},
		{name: "project with an override", config: byProject, want: "sun-spots==1.0 test-tool==1.2",
			files: pyproject(`"test-tool"`, "[tool.uv]\noverride-dependencies = [\"sun-spots==1.0\"]\n")},
		{name: "project with exclude-newer", config: byProject, says: "missing an upload date",
			files: pyproject(`"sun-spots"`, "[tool.uv]\nexclude-newer = \"2020-01-01T00:00:00Z\"\n")},
		{name: "sources of Poetry", config: byProject, says: "lock the project with uv, or remove the sources",
			files: pyproject(`"moon-phase"`, "[[tool.poetry.source]]\nname = \"ours\"\nurl = \""+ours+"\"\n")},
		{name: "sources of PDM", config: byProject, says: "lock the project with uv, or remove the sources",
			files: pyproject(`"moon-phase"`, "[[tool.pdm.source]]\nname = \"ours\"\nurl = \""+ours+"\"\n")},

		{name: "uv.lock", config: byLock, files: pyproject(`"sun-spots"`, optional), want: "sun-spots==2.0"},
		{name: "uv.lock with an extra and a group", config: byLock + "\nextras = [\"mail\"]\ndependency_groups = [\"test\"]",
			files: pyproject(`"sun-spots"`, optional), want: "mail-post==1.2 sun-spots==2.0 test-tool==1.2"},
		{name: "uv.lock without that group", config: byLock + "\ndependency_groups = [\"gone\"]",
			files: pyproject(`"sun-spots"`, ""), says: "`gone`"},
		{name: "uv.lock with an explicit index", config: byLock, files: pyproject(`"moon-phase", "mail-post"`, sources),
			want: "mail-post==1.2 moon-phase==1.2", names: true},
		{name: "uv.lock with the URL of a wheel", config: byLock, want: "moon-phase==1.2", names: true,
			files: pyproject(`"moon-phase @ `+strings.TrimSuffix(ours, "simple")+"files/"+moon.File()+`"`, "")},
		{name: "uv.lock of a workspace", config: byLock, want: "mail-post==1.2 sun-spots==1.0",
			files: pyproject(`"mail-post", "member"`, "[tool.uv.sources]\nmember = { workspace = true }\n"+
				"[tool.uv.workspace]\nmembers = [\"member\"]\n")},
		{name: "lock of a script", config: `lock = "local/app.py.lock"`, says: "export it as a requirements file"},
		{name: "pylock.toml", config: `lock = "local/pylock.toml"`, says: "lock with uv, or export"},

		{name: "wheels of the task, offline", config: "requirements = [\"moon-phase\"]\nfind_links = [\"local/wheels\"]\n" +
			"offline = true", want: "moon-phase==1.2"},
		{name: "a page of wheels, offline", config: "requirements = [\"moon-phase\"]\nfind_links = [\"" + ours +
			"/moon-phase/\"]\noffline = true", want: "moon-phase==1.2", names: true},
		{name: "wheels beside a list", config: byFile, files: file("--no-index\n-f wheels\nmoon-phase\n"),
			want: "moon-phase==1.2"},
	}
	may := start(t, func(c *Config) { c.IndexURL, c.Offline = public, false })
	mayNot := start(t, func(c *Config) { c.IndexURL, c.Offline, c.JobIndexes = public, false, false })
	for _, row := range table {
		t.Run(row.name, func(t *testing.T) {
			if !row.names && row.says == "" {
				testsupport.Long(t, "one of many builds")
			}
			files := map[string]string{"app.py": installed}
			maps.Copy(files, row.files)
			if strings.HasPrefix(row.config, byLock) {
				files["uv.lock"] = uvLock(t, public, files["pyproject.toml"])
			}
			config := row.config
			if !strings.HasPrefix(config, "code") {
				config += "\nscript = \"app.py\""
			}
			cfg := may.task(config, files)
			moon.Write(t, filepath.Join(cfg.TaskDir().LocalDir, "wheels"))
			if row.says != "" {
				err := may.refused(cfg)
				must.StrContains(t, err.Error(), row.says)
				test.StrNotContains(t, err.Error(), "\n", test.Sprint("more than one line"))
				return
			}
			test.Eq(t, row.want+"\n", may.runs(cfg))
			if row.names {
				test.ErrorContains(t, mayNot.refused(mayNot.task(config, files)), "job_indexes")
			}
		})
	}
}
