// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"gopkg.in/yaml.v3"
)

func TestDependabot_IsUpToDate(t *testing.T) {
	want, err := dependabot(t.Context(), "../..")
	must.NoError(t, err)
	have, err := os.ReadFile(filepath.Join("../..", dependabotFile))
	must.NoError(t, err)
	must.Eq(t, string(want), string(have), must.Sprint("run: go tool mage generate"))
}

// Every go.mod, Dockerfile and package.json that git tracks is listed, whatever the file is generated from.
func TestDependabot_ListsEveryModuleImageAndPackage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("../..", dependabotFile))
	must.NoError(t, err)
	var config struct {
		Updates []struct {
			Ecosystem   string `yaml:"package-ecosystem"`
			Directories []string
			Directory   string
		}
	}
	must.NoError(t, yaml.Unmarshal(text, &config))
	listed := map[string][]string{}
	for _, u := range config.Updates {
		listed[u.Ecosystem] = append(listed[u.Ecosystem], append(u.Directories, u.Directory)...)
	}
	files, err := tracked(t.Context(), "../..", "*go.mod", "*Dockerfile", "*package.json")
	must.NoError(t, err)
	must.SliceContains(t, files, "plugins/usb/go.mod")
	for _, file := range files {
		ecosystem := "gomod"
		switch path.Base(file) {
		case "Dockerfile":
			ecosystem = "docker"
		case "package.json":
			ecosystem = "npm"
		}
		if dir := path.Join("/", path.Dir(file)); !slices.Contains(listed[ecosystem], dir) &&
			!strings.Contains(dir, "/testdata") {
			t.Errorf("%s does not have %s for %s: run go tool mage generate", dependabotFile, dir, ecosystem)
		}
	}
	test.SliceContains(t, listed["github-actions"], "/")
}

func TestDependabot_FollowsTheWorkspace(t *testing.T) {
	const tool = "module x/tool\n\ngo 1.26\n\ntool example.com/a/b/cmd/c\n\n" +
		"require (\n\texample.com/a v1.0.0 // indirect\n\texample.com/a/b v1.0.0 // indirect\n)\n"
	root := workspace(t, map[string]string{".ci/tools/c/go.mod": tool, "image/Dockerfile": "FROM scratch\n"})
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}} {
		out, err := output(t.Context(), nil, root, "git", args...)
		must.NoError(t, err, must.Sprint(out))
	}
	text, err := dependabot(t.Context(), root)
	must.NoError(t, err)
	for _, want := range []string{"\n      - /lab\n      - /m\n", "\n      - /.ci/tools/c\n", "\n      - /image\n",
		"dependency-name: example.com/a/b,"} {
		test.StrContains(t, string(text), want)
	}
}
