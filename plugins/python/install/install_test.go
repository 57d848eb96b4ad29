// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

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
	result, python := installs(t, i, r)
	must.Eq(t, 2, result.Packages)
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

func TestInstall_WorksInMemory(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skip("no /dev/shm")
	}
	t.Setenv("TMPDIR", "/dev/shm")
	i := uv(t)
	p := newPlace(t)
	hello(t, p.wheels)
	installs(t, i, p.request(t, "greeting-words"))
}

func TestInstall_KeepsWarnings(t *testing.T) {
	i := uv(t)
	for line, want := range map[string]string{"hello-world": "", "hello-world[missing]": "missing"} {
		p := newPlace(t)
		hello(t, p.wheels)
		result, _ := installs(t, i, p.request(t, line))
		text := strings.Join(result.Warnings, "\n")
		must.EqOp(t, want == "", text == "", must.Sprint(text))
		must.StrContains(t, text, want)
	}
}

func TestInstall_KeepsOtherDirectoriesCalledSitePackages(t *testing.T) {
	i := uv(t)
	p := newPlace(t)
	madeWheel{Name: "another", Version: "1.0", Files: map[string]string{
		"another-1.0.data/data/lib/an/site-packages/text.txt":                   "text",
		"another-1.0.data/data/lib/an/site-packages/odd-2.0.dist-info/METADATA": "Name: odd\nVersion: 2.0\n",
	}}.Write(t, p.wheels)
	result, _ := installs(t, i, p.request(t, "another"))
	must.Eq(t, 1, result.Packages)
	must.FileExists(t, filepath.Join(p.env(), "lib/an/site-packages/text.txt"))
	compiled, err := filepath.Glob(filepath.Join(p.env(), "lib/python*/site-packages/__pycache__/*.pyc"))
	must.NoError(t, err)
	must.SliceNotEmpty(t, compiled)
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
					madeWheel{Name: "report-tools", Version: version}.Write(t, dir)
				}
				urls = append(urls, wheelIndex(t, dir).URL+"/simple")
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

func TestInstall_TakesALockFromSeveralIndexes(t *testing.T) {
	i := uv(t)
	p := newPlace(t)
	other := p.wheels + "/other"
	matrix := madeWheel{Name: "matrix", Version: "2.0"}.Write(t, p.wheels)
	madeWheel{Name: "matrix", Version: "1.0"}.Write(t, other)
	madeWheel{Name: "matrix", Version: "3.0"}.Write(t, other)
	graphs := madeWheel{Name: "graphs", Version: "1.0"}.Write(t, other)
	madeWheel{Name: "graphs", Version: "9.9"}.Write(t, p.wheels)
	r := p.request(t)
	r.Sources = requirement.Sources{
		URL: wheelIndex(t, p.wheels).URL + "/simple", Extra: []string{wheelIndex(t, other).URL + "/simple"},
	}
	r.Requirements = &requirement.Set{
		Lines:  []string{"graphs==1.0 --hash=sha256:" + graphs, "matrix==2.0 --hash=sha256:" + matrix},
		Hashed: true, Complete: true,
	}
	installs(t, i, r)
	has(t, p, "graphs-1.0", "matrix-2.0")
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
