// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/mod/modfile"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// In the workspace, the go command selects the highest version of a dependency that any module requires. With
// GOWORK=off, as for a release, it selects the version in the module's go.mod. If all of them require the same version,
// tests and releases link the same code.
func TestModules_RequireOneVersionOfEachDependency(t *testing.T) {
	root, err := filepath.Abs("../..")
	must.NoError(t, err)
	dirs, err := modules(t.Context(), root)
	must.NoError(t, err)
	must.SliceContains(t, dirs, root)
	required := map[string]map[string][]string{} // the modules that require a dependency, by dependency and version
	add := func(module, version, file string) {
		if required[module] == nil {
			required[module] = map[string][]string{}
		}
		required[module][version] = append(required[module][version], file)
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, "go.mod")
		text, err := os.ReadFile(path)
		must.NoError(t, err)
		mod, err := modfile.Parse(path, text, nil)
		must.NoError(t, err)
		for _, r := range mod.Require {
			add(r.Mod.Path, r.Mod.Version, mod.Module.Mod.Path)
		}
	}
	out, err := output(t.Context(), nil, root, "go", "list", "-m", "-f", "{{if not .Main}}{{.Path}} {{.Version}}{{end}}",
		"all")
	must.NoError(t, err, must.Sprint(out))
	for line := range strings.Lines(out) {
		module, version, found := strings.Cut(strings.TrimSpace(line), " ")
		if found && required[module] != nil {
			add(module, version, "go.work")
		}
	}
	must.MapNotEmpty(t, required)
	for _, module := range slices.Sorted(maps.Keys(required)) {
		if len(required[module]) > 1 {
			t.Errorf("%s: %v; run `go work sync`, then `go mod tidy` in each module", module, required[module])
		}
	}
}

// Each go.mod must require exactly what its module imports: releases, and TestModule in CI, build a module by its
// go.mod alone.
func TestModules_AreTidyAndVerified(t *testing.T) {
	testsupport.Long(t, "reads every module of the cache")
	dirs, err := modules(t.Context(), "../..")
	must.NoError(t, err)
	env := append(goEnv(t.Context(), "../.."), "GOWORK=off", "GOFLAGS=")
	for _, dir := range dirs {
		for _, args := range [][]string{{"mod", "tidy", "-diff"}, {"mod", "verify"}} {
			out, err := output(t.Context(), env, dir, "go", args...)
			test.NoError(t, err, test.Sprintf("%s: go %v\n%s", dir, args, out))
		}
	}
}
