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

const dependabotFile = ".github/dependabot.yml"

// dependabot.yml must list the folder of every go.mod, Dockerfile and package.json: Dependabot reads no other folder.
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
			t.Errorf("%s does not have %s for %s: add it", dependabotFile, dir, ecosystem)
		}
	}
	test.SliceContains(t, listed["github-actions"], "/")
}

// CI must build and test each module alone.
func TestCI_TestsEveryModule(t *testing.T) {
	text, err := os.ReadFile("../../.github/workflows/ci.yml")
	must.NoError(t, err)
	var ci struct {
		Jobs map[string]struct {
			Strategy struct{ Matrix struct{ Module []string } }
		}
	}
	must.NoError(t, yaml.Unmarshal(text, &ci))
	root, err := filepath.Abs("../..")
	must.NoError(t, err)
	dirs, err := modules(t.Context(), root)
	must.NoError(t, err)
	var want []string
	for _, dir := range dirs[1:] { // the first is the root, whose only package is the magefile
		want = append(want, strings.TrimPrefix(dir, root+"/"))
	}
	test.Eq(t, want, ci.Jobs["module"].Strategy.Matrix.Module)
}
