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

	"github.com/outrider-dev/outrider/plugins/python/install"
)

func TestInstall_CreatesAnEnvironment(t *testing.T) {
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
	// another user cannot write there, so it can only use the bytecode that Install has compiled
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
