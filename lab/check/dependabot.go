// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"golang.org/x/mod/modfile"
)

//go:embed dependabot.yml.tmpl
var dependabotText string

// dependabotFile is in the repository.
const dependabotFile = ".github/dependabot.yml"

// goTool is a program of .ci/tools.
type goTool struct {
	Dir    string // as dependabot names it: from the repository's root, with a slash before
	Module string
}

// Generate writes the configuration of dependabot, which lists every module, and tidies the modules of the workspace.
func Generate(ctx context.Context, root string) error {
	text, err := dependabot(ctx, root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, dependabotFile), text, 0o644); err != nil {
		return err
	}
	modules, err := Modules(ctx, root)
	if err != nil {
		return err
	}
	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=") // with their replace directives, as they are released
	for _, dir := range modules {
		if out, err := output(ctx, env, dir, "go", "mod", "tidy"); err != nil {
			return fmt.Errorf("failed to tidy %s: %w\n%s", dir, err, out)
		}
	}
	return nil
}

// dependabot lists what dependabot can't find by itself: it reads no folder that is not named.
func dependabot(ctx context.Context, root string) ([]byte, error) {
	var data struct {
		Modules, Images, Packages []string
		Tools                     []goTool
	}
	modules, err := workspaceModules(ctx, root)
	if err != nil {
		return nil, err
	}
	for _, m := range modules {
		data.Modules = append(data.Modules, path.Join("/", m.dir))
	}
	files, err := filepath.Glob(filepath.Join(root, ".ci", "tools", "*", "go.mod"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		tool, err := toolOf(file)
		if err != nil {
			return nil, err
		}
		data.Tools = append(data.Tools, tool)
	}
	for pattern, dirs := range map[string]*[]string{"*Dockerfile": &data.Images, "*package.json": &data.Packages} {
		files, err := tracked(ctx, root, pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			*dirs = append(*dirs, path.Join("/", path.Dir(file)))
		}
		slices.Sort(*dirs)
		*dirs = slices.Compact(*dirs)
	}
	slices.Sort(data.Modules)
	var b bytes.Buffer
	err = template.Must(template.New("dependabot").Parse(dependabotText)).Execute(&b, data)
	return b.Bytes(), err
}

// toolOf reads which module the program of a go.mod in .ci/tools is of.
func toolOf(file string) (goTool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return goTool{}, err
	}
	mod, err := modfile.Parse(file, text, nil)
	if err != nil {
		return goTool{}, err
	}
	tool := goTool{Dir: "/.ci/tools/" + filepath.Base(filepath.Dir(file))}
	if len(mod.Tool) != 1 {
		return goTool{}, fmt.Errorf("%s has %d tools; want one", file, len(mod.Tool))
	}
	for _, r := range mod.Require {
		if strings.HasPrefix(mod.Tool[0].Path+"/", r.Mod.Path+"/") && len(r.Mod.Path) > len(tool.Module) {
			tool.Module = r.Mod.Path
		}
	}
	if tool.Module == "" {
		return goTool{}, fmt.Errorf("%s requires no module of its tool %s", file, mod.Tool[0].Path)
	}
	return tool, nil
}
