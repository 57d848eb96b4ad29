// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/wheel/wheeltest"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

func TestExport_InstallsALockedScript(t *testing.T) {
	i := uv(t)
	const script = "# /// script\n# requires-python = \">=3.8\"\n# dependencies = [\"hello-world\"]\n# ///\nprint()\n"
	p := newPlace(t)
	hello(t, p.wheels)
	url := wheeltest.Index(t, p.wheels).URL + "/simple"
	author := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(author, "s.py"), []byte(script), 0o644))
	cmd := exec.Command(i.Path, "lock", "--no-config", "--no-cache", "--python", system(t).Path, "--default-index", url,
		"--script", "s.py")
	cmd.Dir = author
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	lock, err := os.ReadFile(filepath.Join(author, "s.py.lock"))
	must.NoError(t, err)
	r := p.request(t)
	r.Requirements = &requirement.Set{UVLock: &requirement.UVLock{Lock: lock, Project: []byte(script), Script: true}}
	r.Sources = requirement.Sources{URL: url}
	set, err := i.Export(t.Context(), r)
	must.NoError(t, err)
	must.True(t, set.Hashed)
	must.True(t, set.Complete)
	must.SliceLen(t, 2, set.Lines)
	wheeltest.Wheel{Name: "greeting-words", Version: "3.0"}.Write(t, p.wheels) // newer than the lock
	r.Requirements = set
	check(t, p, i, r)
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
	must.NoError(t, err)
	must.Eq(t, []string{"hello==1 --hash=" + hash}, set.Lines)
}
