// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
)

// projectPath is the beginning of the project's own modules' paths.
const projectPath = "github.com/outrider-dev/outrider/"

// linked is a module of others that a program has code of.
type linked struct {
	debug.Module
	packages map[string]license // by import path
	licenses license            // of them all
}

// program is one that the release contains: the plugin, or one in it.
type program struct {
	path    string // of the binary
	arch    string // empty: the plugin's
	info    *debug.BuildInfo
	modules []string // "path@version" of what it has code of, the project's own left out
}

// links finds which modules of others the programs contain, by what the go command stamped into them, and which of
// their packages. They are in order of their paths.
func (a *artefact) links(ctx context.Context) error {
	found := map[string]*linked{}
	a.programs = []program{{path: a.path}, {path: a.supervisor}}
	if a.plugin.Shim {
		for _, arch := range build.ShimArchs {
			a.programs = append(a.programs, program{path: a.plugin.ShimPath(arch), arch: arch})
		}
	}
	for i := range a.programs {
		p := &a.programs[i]
		var err error
		if p.info, err = buildinfo.ReadFile(p.path); err != nil {
			return err
		}
		for _, m := range p.info.Deps {
			if strings.HasPrefix(m.Path, projectPath) {
				continue
			}
			if m.Replace != nil {
				return fmt.Errorf("%s is replaced by %s, whose licence is not looked at", m.Path, m.Replace.Path)
			}
			key := m.Path + "@" + m.Version
			p.modules = append(p.modules, key)
			if found[key] == nil {
				found[key] = &linked{Module: *m, packages: map[string]license{}}
			}
		}
	}
	err := a.packagesOf(ctx, a.plugin.Dir, ".", a.libusb, found)
	if err == nil {
		err = a.packagesOf(ctx, filepath.Join(a.Root, "internal", "core"), "./cmd/outrider-supervisor", false, found)
	}
	if err == nil && a.plugin.Shim {
		err = a.packagesOf(ctx, a.plugin.Dir, "./cmd/outrider-shim", false, found)
	}
	if err != nil {
		return err
	}
	for _, m := range found {
		if len(m.packages) == 0 {
			return fmt.Errorf("no package of %s was found", m.Path)
		}
		a.modules = append(a.modules, m)
	}
	slices.SortFunc(a.modules, func(x, y *linked) int { return strings.Compare(x.Path, y.Path) })
	return nil
}

// packagesOf adds the packages that a program is compiled of to their modules, with their licences.
func (a *artefact) packagesOf(ctx context.Context, dir, pkg string, cgo bool, found map[string]*linked) error {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-tags=embed_supervisor",
		"-json=ImportPath,Dir,Standard,Module,GoFiles,CgoFiles", pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), a.builder.Env(cgo)...)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("failed to list the packages of %s: %w", a.plugin.Name, err)
	}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Dir   string
			Standard          bool
			Module            *struct{ Path, Version, Dir string }
			GoFiles, CgoFiles []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if p.Standard || p.Module == nil || strings.HasPrefix(p.ImportPath, projectPath) {
			continue
		}
		m := found[p.Module.Path+"@"+p.Module.Version]
		if m == nil {
			return fmt.Errorf("%s %s is compiled in, but the program does not say so", p.Module.Path, p.Module.Version)
		}
		l, err := licenseOf(p.Module.Dir, p.Dir, append(p.GoFiles, p.CgoFiles...))
		if err != nil {
			return fmt.Errorf("%s: %w", p.ImportPath, err)
		}
		m.packages[p.ImportPath] = l
		m.licenses = m.licenses.and(l)
	}
}
