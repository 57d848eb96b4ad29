// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/wheel/wheeltest"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

func TestInstall_MakesAnEnvironment(t *testing.T) {
	i := uv(t)
	p := newPlace(t)
	hello(t, p.wheels)
	check(t, p, i, p.request(t, "hello-world==2.0"))
}

func check(t *testing.T, p place, i install.Installer, r install.Request) {
	t.Helper()
	python := installs(t, i, r)
	if out, err := exec.Command(filepath.Join(p.env(), "bin/hello")).CombinedOutput(); err != nil ||
		string(out) != "hello 1.0\n" {
		t.Errorf("its program printed %q: %v", out, err)
	}
	// Another user, who can't write there, gets the compiled modules.
	cmd := exec.Command(python, "-I", "-v", "-c", "import hello_world; hello_world.fail()")
	if p.as != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, _ := cmd.CombinedOutput()
	minor := r.Python.Version[:strings.LastIndex(r.Python.Version, ".")]
	site := filepath.Join(p.env(), "lib/python"+minor+"/site-packages")
	for _, want := range []string{
		"# code object from '" + site + "/__pycache__/hello_world.cpython-" + strings.ReplaceAll(minor, ".", "") + ".pyc'",
		`File "` + site + `/hello_world.py", line 6, in fail`,
	} {
		test.StrContains(t, string(out), want)
	}
}

// With pip, whoever registers a private name on a public index reaches jobs of the node.
func TestInstall_TakesOneNameOfTheFirstIndex(t *testing.T) {
	for _, row := range []struct {
		name    string
		wanted  string
		indexes []string // version of each: the extra ones in their order, and then the index
		uv      string   // what is installed, "" is an error
	}{
		{name: "a newer one on the index", wanted: "report-tools", indexes: []string{"1.0", "2.0"}, uv: "1.0"},
		{name: "a version that is on the index alone", wanted: "report-tools>=2",
			indexes: []string{"1.0", "2.0"}},
		{name: "a newer one on the second extra", wanted: "report-tools",
			indexes: []string{"1.0", "3.0", "2.0"}, uv: "1.0"},
		{name: "nothing on the first extra", wanted: "report-tools",
			indexes: []string{"", "1.0", "2.0"}, uv: "1.0"},
	} {
		t.Run(row.name, func(t *testing.T) {
			i := uv(t)
			p := newPlace(t)
			var urls []string
			for n, version := range row.indexes {
				dir := filepath.Join(p.wheels, string(rune('a'+n)))
				if version != "" {
					wheeltest.Wheel{Name: "report-tools", Version: version}.Write(t, dir)
				}
				urls = append(urls, wheeltest.Index(t, dir).URL+"/simple")
			}
			r := p.request(t, row.wanted)
			r.Sources = requirement.Sources{URL: urls[len(urls)-1], Extra: urls[:len(urls)-1]}
			if want := row.uv; want == "" {
				fails(t, i, r, false)
			} else {
				installs(t, i, r)
				has(t, p, "report_tools-"+want)
			}
		})
	}
}

// has checks which packages an environment has.
func has(t *testing.T, p place, packages ...string) {
	t.Helper()
	infos, err := filepath.Glob(filepath.Join(p.env(), "lib/*/site-packages/*.dist-info"))
	must.NoError(t, err)
	for n, info := range infos {
		infos[n] = strings.TrimSuffix(filepath.Base(info), ".dist-info")
	}
	must.Eq(t, packages, infos)
}
