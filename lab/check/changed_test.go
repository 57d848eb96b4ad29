// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestChanged_ModulesAreThoseThatAChangeConcerns(t *testing.T) {
	modules, err := workspaceModules(t.Context(), "../..")
	must.NoError(t, err)
	all := concerned(modules, []string{"go.work"})
	must.SliceContainsSubset(t, all,
		[]string{"internal/core", "lab", "plugins/exec-lite", "plugins/python", "plugins/usb"})
	for _, tc := range []struct {
		files []string
		want  []string
	}{
		{nil, []string{}},
		{[]string{"plugins/usb/main.go"}, []string{"plugins/usb"}},
		{[]string{"plugins/usb/main.go", "plugins/usb/usbids/x", "plugins/python/go.mod"},
			[]string{"plugins/python", "plugins/usb"}},
		{[]string{"lab/e2e/x_test.go"}, []string{"lab"}},
		{[]string{"internal/core/driver/driver.go"}, all},
		{[]string{".ci/run"}, all},
		{[]string{".github/workflows/ci.yml"}, all},
		{[]string{"magefile.go"}, all},
		{[]string{"README.md"}, []string{"lab"}},
		{[]string{"docs/usb.md"}, []string{"lab", "plugins/usb"}},
		{[]string{"docs/security.md"}, []string{"lab"}},
		{[]string{"plugins/usb/CHANGELOG.md"}, []string{"plugins/usb"}},
		{[]string{"plugins/usbextra/x.go"}, all}, // of a module that go.work has not
	} {
		test.SliceContainsAll(t, tc.want, concerned(modules, tc.files), test.Sprint(tc.files))
	}
}

func TestChanged_ComparesWithTheCommonAncestor(t *testing.T) {
	root := workspace(t, map[string]string{"m/p.go": "package p\n"})
	git := func(args ...string) {
		t.Helper()
		identity := []string{"-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"}
		out, err := output(t.Context(), nil, root, "git", append(identity, args...)...)
		must.NoError(t, err, must.Sprint(out))
	}
	change := func(file string) {
		t.Helper()
		must.NoError(t, os.WriteFile(filepath.Join(root, file), []byte("package x\n"), 0o644))
		git("add", "-A")
		git("commit", "-q", "-m", file)
	}
	git("init", "-q", "-b", "trunk")
	change("m/a.go")
	git("checkout", "-q", "-b", "topic")
	change("lab/b.go")
	git("checkout", "-q", "trunk")
	change("m/c.go")
	git("checkout", "-q", "topic")
	changed, err := Changed(t.Context(), root, "trunk")
	must.NoError(t, err)
	test.Eq(t, []string{"lab"}, changed)
	changed, err = Changed(t.Context(), root, "")
	must.NoError(t, err)
	test.Eq(t, []string{"m", "lab"}, changed)
	_, err = Changed(t.Context(), root, "nonsense")
	test.ErrorContains(t, err, "nonsense")
}
