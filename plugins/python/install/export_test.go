// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestExport_InstallsALockedProject(t *testing.T) {
	i := uv(t)
	tests := map[string]struct{ project, file, lock string }{
		"a project": {
			project: "[project]\nname = \"app\"\nversion = \"1\"\nrequires-python = \">=3.8\"\n" +
				"dependencies = [\"hello-world\"]\n[dependency-groups]\ndev = [\"only-for-dev\"]\n",
			file: "pyproject.toml",
			lock: "uv.lock",
		},
		"a script": {
			project: "# /// script\n# requires-python = \">=3.8\"\n# dependencies = [\"hello-world\"]\n# ///\nprint()\n",
			file:    "s.py",
			lock:    "s.py.lock",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			hello(t, p.wheels)
			wheeltest.Wheel{Name: "only-for-dev", Version: "1.0"}.Write(t, p.wheels)
			url := wheeltest.Index(t, p.wheels).URL + "/simple"
			author := t.TempDir()
			must.NoError(t, os.WriteFile(filepath.Join(author, test.file), []byte(test.project), 0o644))
			argv := []string{"lock", "--no-config", "--no-cache", "--python", system(t).Path, "--default-index", url}
			if test.file == "s.py" {
				argv = append(argv, "--script", "s.py")
			}
			cmd := exec.Command(i.UV, argv...)
			cmd.Dir = author
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			lock, err := os.ReadFile(filepath.Join(author, test.lock))
			must.NoError(t, err)
			r := p.request(t)
			r.Requirements = &requirement.Set{
				UVLock: &requirement.UVLock{Lock: lock, Project: []byte(test.project), Script: test.file == "s.py"},
			}
			r.Sources = index.Sources{URL: url}
			set, err := i.Export(t.Context(), r)
			if err != nil {
				t.Fatalf("%v\n%s", err, lines(err))
			}
			must.True(t, set.Hashed, must.Sprintf("exported %+v", set))
			must.True(t, set.Complete, must.Sprintf("exported %+v", set))
			must.SliceLen(t, 2, set.Lines, must.Sprintf("exported %+v", set))
			must.StrContains(t, strings.Join(set.Lines, "\n"), "hello-world==2.0",
				must.Sprintf("exported %+v", set))
			if left, err := os.ReadDir(p.work()); err != nil || len(left) > 0 {
				t.Errorf("it left %v: %v", left, err)
			}
			// A newer version that came since is not taken.
			wheeltest.Wheel{Name: "greeting-words", Version: "3.0"}.Write(t, p.wheels)
			r.Requirements = set
			result, err := i.Install(t.Context(), r)
			if err != nil {
				t.Fatalf("%v\n%s", err, lines(err))
			}
			if want := []string{"greeting-words 1.0", "hello-world 2.0"}; !slices.Equal(result.Packages, want) {
				t.Errorf("installed %q", result.Packages)
			}
		})
	}
}

func TestExport_LeavesOutDefaultGroups(t *testing.T) {
	const hash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	lock := "version = 1\nrequires-python = '>=3.8'\n" +
		"[[package]]\nname = 'app'\nversion = '1'\nsource = {virtual = '.'}\n" +
		"dependencies = [{name = 'hello'}]\n" +
		"[package.dev-dependencies]\ndev = [{name = 'in-dev'}]\nlint = [{name = 'in-lint'}]\n" +
		"[package.metadata]\nrequires-dist = [{name = 'hello'}]\n" +
		"[package.metadata.requires-dev]\ndev = [{name = 'in-dev'}]\nlint = [{name = 'in-lint'}]\n"
	for _, name := range []string{"hello", "in-dev", "in-lint"} {
		lock += fmt.Sprintf("[[package]]\nname = '%s'\nversion = '1'\nsource = {registry = 'https://pypi.org/simple'}\n"+
			"wheels = [{url = 'https://host/%s-1-py3-none-any.whl', hash = '%s'}]\n",
			name, strings.ReplaceAll(name, "-", "_"), hash)
	}
	project := "[project]\nname = 'app'\nversion = '1'\nrequires-python = '>=3.8'\ndependencies = ['hello']\n" +
		"[dependency-groups]\ndev = ['in-dev']\nlint = ['in-lint']\n[tool.uv]\ndefault-groups = ['dev', 'lint']\n"
	r := newPlace(t).request(t)
	r.Requirements = &requirement.Set{UVLock: &requirement.UVLock{Lock: []byte(lock), Project: []byte(project)}}
	set, err := uv(t).Export(t.Context(), r)
	must.NoError(t, err, must.Sprint(lines(err)))
	must.Eq(t, []string{"hello==1 --hash=" + hash}, set.Lines)
}
