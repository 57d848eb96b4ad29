// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// small is a repository with one plugin, whose release is what a magefile writes.
func small(t *testing.T, plugin, body string) string {
	t.Helper()
	mod, err := os.ReadFile("../../go.mod")
	must.NoError(t, err)
	sum, err := os.ReadFile("../../go.sum")
	must.NoError(t, err)
	mage := ""
	for line := range strings.Lines(string(mod)) {
		if version, found := strings.CutPrefix(strings.TrimSpace(line), "github.com/magefile/mage "); found {
			mage = version
		}
	}
	root := write(t, map[string]string{
		"go.mod": "module x\n\ngo 1.26\n\ntool github.com/magefile/mage\n\nrequire github.com/magefile/mage " + mage + "\n",
		"go.sum": string(sum), "go.work": "go 1.26\n\nuse .\n", ".gitignore": "/dist/\n/bin/\n",
		"plugins/" + plugin + "/go.mod": "module x/plugins/" + plugin + "\n\ngo 1.26\n",
		"magefile.go": `//go:build mage

package main

import (
	"os"

	"github.com/magefile/mage/mg"
)

type Release mg.Namespace

func (Release) Build(plugin *string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := os.MkdirAll("dist/` + plugin + `", 0o755); err != nil {
		return err
	}
	_ = dir
	return os.WriteFile("dist/` + plugin + `/x.zip", []byte(` + body + `), 0o644)
}
`,
	})
	commit(t, root, root)
	return root
}

// commit makes a commit of a folder's state in a repository, which is made if there is none.
func commit(t *testing.T, repository, folder string) {
	t.Helper()
	for _, args := range [][]string{{"init", "--quiet", repository},
		{"--git-dir=" + filepath.Join(repository, ".git"), "--work-tree=" + folder, "add", "--all"},
		{"-C", repository, "-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false",
			"commit", "--quiet", "--allow-empty", "--message=state"}} {
		out, err := exec.Command("git", args...).CombinedOutput()
		must.NoError(t, err, must.Sprintf("%v: %s", args, out))
	}
}

func tag(t *testing.T, repository, name string) {
	t.Helper()
	out, err := exec.Command("git", "-C", repository, "-c", "tag.gpgsign=false", "tag", name).CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
}

func TestVerifyTwice_FindsWhatDependsOnTheFolder(t *testing.T) {
	_, err := VerifyTwice(t.Context(), Options{Root: small(t, "hello", `"the same"`)})
	test.NoError(t, err)
	_, err = VerifyTwice(t.Context(), Options{Root: small(t, "hello", `dir`)})
	test.ErrorContains(t, err, "two builds of hello differ: x.zip differs")
}

func TestBuildTag_IsOfTheTagAlone(t *testing.T) {
	root := small(t, "hello", `"of the tag"`)
	tag(t, root, "plugins/hello/v0.1.0")
	magefile := filepath.Join(root, "magefile.go")
	text, err := os.ReadFile(magefile)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(magefile, []byte(strings.Replace(string(text), "of the tag", "of later", 1)), 0o644))
	r, err := BuildTag(t.Context(), Options{Root: root, Plugin: "hello"}, "v0.1.0")
	must.NoError(t, err)
	test.Eq(t, filepath.Join(root, "dist", "hello"), r.Dir)
	got, err := os.ReadFile(filepath.Join(r.Dir, "x.zip"))
	must.NoError(t, err)
	test.Eq(t, "of the tag", string(got))
	left, err := filepath.Glob(filepath.Join(root, "dist", "*"))
	must.NoError(t, err)
	test.Eq(t, []string{r.Dir}, left, test.Sprint("the clone is removed"))
}

// What the clone's own build says is not shown.
func TestBuildTag_TellsThatAKindIsMissing(t *testing.T) {
	root := small(t, "usb", `"static"`)
	tag(t, root, "plugins/usb/v0.1.0")
	said := ""
	o := Options{Root: root, Plugin: "usb", Say: func(format string, args ...any) { said += fmt.Sprintf(format, args...) }}
	_, err := BuildTag(t.Context(), o, "0.1.0")
	must.NoError(t, err)
	test.StrHasPrefix(t, "usb: not made in the kind with libusb", said)
}
