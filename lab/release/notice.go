// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
)

// notice returns the NOTICE: the third-party modules that the plugin and its supervisor are compiled from, for any
// architecture, with all licence files in the folders of their packages and above. Each text appears once.
func (c *settings) notice(ctx context.Context, root string) (string, error) {
	modules := map[string]map[string]string{}
	for _, arch := range Archs {
		env := build.Builder{Arch: arch, Static: true, Release: true}.Env(false)
		for _, program := range []string{c.Plugin.Dir, filepath.Join(root, "internal/core/cmd/outrider-supervisor")} {
			if err := licences(ctx, program, env, modules); err != nil {
				return "", err
			}
		}
	}
	var list, texts strings.Builder
	number := map[string]int{}
	for _, m := range slices.Sorted(maps.Keys(modules)) {
		if len(modules[m]) == 0 {
			return "", fmt.Errorf("module %s has no licence file", m)
		}
		fmt.Fprintf(&list, "\n%s\n", m)
		for _, file := range slices.Sorted(maps.Keys(modules[m])) {
			text := modules[m][file]
			if number[text] == 0 {
				number[text] = len(number) + 1
				fmt.Fprintf(&texts, "\n%s\n[%d]\n\n%s\n", strings.Repeat("=", 80), number[text], text)
			}
			fmt.Fprintf(&list, "    %s [%d]\n", file, number[text])
		}
	}
	return fmt.Sprintf(`%s %s, of Outrider
Copyright the Outrider authors

It is licensed under the Mozilla Public License 2.0: see LICENSE. Its source is commit
%s of https://github.com/outrider-dev/outrider

The binary also contains code of the Go modules below. Each is listed with its licence files, whose
texts follow under their numbers; a licence file in a folder applies to that folder.
"go mod download MODULE@VERSION" downloads the source of a module.
`, c.Binary, c.Version, c.Commit) + list.String() + texts.String(), nil
}

// licences adds to modules the third-party modules that the program in dir is compiled from. Each has the texts of its
// licence files, by their paths in the module.
func licences(ctx context.Context, dir string, env []string, modules map[string]map[string]string) error {
	const format = "{{if .Standard}}the standard library of Go\t{{.Root}}\t{{.Root}}" +
		"{{else}}{{.Module.Path}} {{.Module.Version}}\t{{.Module.Dir}}\t{{.Dir}}{{end}}"
	packages, err := output(ctx, dir, env, "go", "list", "-deps", "-tags=embed_supervisor", "-f", format, ".")
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(packages, "\n") {
		name, folders, _ := strings.Cut(line, "\t")
		top, folder, _ := strings.Cut(folders, "\t")
		if strings.HasPrefix(name, "github.com/outrider-dev/outrider/") {
			continue
		}
		if modules[name] == nil {
			modules[name] = map[string]string{}
		}
		for ; strings.HasPrefix(folder, top); folder = filepath.Dir(folder) {
			if err := licenceFiles(top, folder, modules[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|copyright|notice|patents|unlicense)`)

// licenceFiles adds the texts of the licence files of a folder to found, by their paths below top.
func licenceFiles(top, folder string, found map[string]string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(filepath.Join(folder, e.Name()), top+"/")
		found[name] = strings.Trim(string(text), "\n")
	}
	return nil
}
