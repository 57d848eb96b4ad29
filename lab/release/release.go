// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package release makes what is published of a plugin: for each architecture a zip, a deb, an rpm and a list of what
// the binary is made of (SBOM), and the checksums of them all. The same commit gives the same bytes anywhere.
package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/outrider-dev/outrider/lab/build"
)

// Archs are the architectures that are published, by Go's names.
var Archs = []string{"amd64", "arm64"}

// Project is where the repository is, and will be.
const Project = "https://github.com/outrider-dev/outrider"

// Options are what to build.
type Options struct {
	Root   string   // of the checkout
	Plugin string   // by name; empty is every plugin
	Archs  []string // empty is all of Archs
	Out    string   // the folder that gets a folder for each plugin; empty is Root/dist

	// Progress is called with the state of a long step, and with what a reader of the output should know. May be nil.
	Progress func(format string, args ...any)
}

// Result is one plugin's release.
type Result struct {
	Plugin  build.Plugin
	Version string   // without a leading v
	Dir     string   // has the files
	Files   []string // their names, SHA256SUMS at last
}

// Build makes the release of the checkout as it is. Its version is the one that the go command stamps: that of the tag
// of the commit, if it has one and nothing is changed.
func Build(ctx context.Context, o Options) ([]Result, error) {
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if len(o.Archs) == 0 {
		o.Archs = Archs
	}
	for _, arch := range o.Archs {
		if !slices.Contains(Archs, arch) {
			return nil, fmt.Errorf("nothing is published for %q; there are: %v", arch, Archs)
		}
	}
	root, err := build.Root(o.Root)
	if err != nil {
		return nil, err
	}
	o.Root = root
	if o.Out == "" {
		o.Out = filepath.Join(root, "dist")
	}
	plugins, err := build.Plugins(root)
	if err == nil && o.Plugin != "" {
		plugins, err = build.Select(plugins, o.Plugin)
	}
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, p := range plugins {
		r, err := one(ctx, o, p)
		if err != nil {
			return nil, fmt.Errorf("failed to make the release of %s: %w", p.Name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// one makes a plugin's release in a folder beside its place, and then puts it there in place of the last.
func one(ctx context.Context, o Options, p build.Plugin) (r Result, err error) {
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return r, err
	}
	scratch, err := os.MkdirTemp(o.Out, "."+p.Name+"-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	r = Result{Plugin: p, Dir: filepath.Join(o.Out, p.Name)}
	dir := filepath.Join(scratch, p.Name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return r, err
	}
	native, err := compile(ctx, o, p, runtime.GOARCH, scratch)
	if err != nil {
		return r, err
	}
	config, err := native.output(ctx, "config")
	if err != nil {
		return r, err
	}
	for _, arch := range o.Archs {
		b := native
		if arch != runtime.GOARCH {
			if b, err = compile(ctx, o, p, arch, scratch); err != nil {
				return r, err
			}
		}
		a := &artefact{Options: o, binary: b, config: config, scratch: scratch}
		if r.Version = b.version(); b.dirty() {
			o.Progress("%s %s: changes that are not committed are in it", p.Name, r.Version)
		} else if !b.tagged() {
			o.Progress("%s %s: no release, since the commit has no tag of its version", p.Name, r.Version)
		}
		for _, make := range []func(context.Context, string) error{a.zip, a.packages} {
			if err := make(ctx, dir); err != nil {
				return r, err
			}
		}
	}
	if r.Files, err = writeSums(dir); err != nil {
		return r, err
	}
	if err := os.RemoveAll(r.Dir); err != nil {
		return r, err
	}
	return r, os.Rename(dir, r.Dir)
}
