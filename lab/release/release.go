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

	// Libusb is whether the kind of a plugin that is linked with libusb is made too. Nil is where this machine can.
	Libusb *bool

	// Toolchain is the version of Go to build a clone with, such as go1.26.8. Empty is the one of this machine.
	Toolchain string

	// Progress is called with the state of a long step, and Say with what a reader of the output should know. May be nil.
	Progress, Say func(format string, args ...any)
}

// Result is one plugin's release.
type Result struct {
	Plugin  build.Plugin
	Version string   // without a leading v; Build alone sets it
	Dir     string   // has the files
	Files   []string // their names, SHA256SUMS at last
}

// resolve checks the options and fills in what is not set. It returns the plugins that are meant.
func (o *Options) resolve() ([]build.Plugin, error) {
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	if len(o.Archs) == 0 {
		o.Archs = Archs
	}
	for _, arch := range o.Archs {
		if !slices.Contains(Archs, arch) {
			return nil, fmt.Errorf("nothing is published for %q; there are: %v", arch, Archs)
		}
	}
	var err error
	if o.Root, err = build.Root(o.Root); err != nil {
		return nil, err
	}
	if o.Out == "" {
		o.Out = filepath.Join(o.Root, "dist")
	}
	plugins, err := build.Plugins(o.Root)
	if err == nil && o.Plugin != "" {
		plugins, err = build.Select(plugins, o.Plugin)
	}
	return plugins, err
}

// Build makes the release of the checkout as it is. Its version is the one that the go command stamps: that of the tag
// of the commit, if it has one and nothing is changed.
func Build(ctx context.Context, o Options) ([]Result, error) {
	plugins, err := o.resolve()
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, p := range plugins {
		r := Result{Plugin: p, Dir: filepath.Join(o.Out, p.Name)}
		err := o.replace(r.Dir, func(scratch string) (built string, err error) {
			built = filepath.Join(scratch, "release")
			if err := os.Mkdir(built, 0o755); err != nil {
				return "", err
			}
			r.Version, r.Files, err = one(ctx, o, p, scratch, built)
			return built, err
		})
		if err != nil {
			return nil, fmt.Errorf("failed to make the release of %s: %w", p.Name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// replace puts the directory that make builds in a scratch directory into the place of an earlier one.
func (o *Options) replace(place string, make func(scratch string) (built string, err error)) (err error) {
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(o.Out, ".new-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	built, err := make(scratch)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(place); err != nil {
		return err
	}
	return os.Rename(built, place)
}

// one makes the files of a plugin's release in a directory.
func one(ctx context.Context, o Options, p build.Plugin, scratch, dir string) (string, []string, error) {
	binaries, err := compileAll(ctx, o, p, scratch)
	if err != nil {
		return "", nil, err
	}
	native := binaries[len(binaries)-1]
	version := native.version()
	switch {
	case native.dirty():
		o.Say("%s %s: not a release, since changes that are not committed are in it", p.Name, version)
	case !native.tagged():
		o.Say("%s %s: not a release, since the commit has no tag %s", p.Name, version, tagOf(p, "<version>"))
	}
	config, err := native.output(ctx, "config")
	if err != nil {
		return "", nil, err
	}
	help, err := native.output(ctx, "help")
	if err != nil {
		return "", nil, err
	}
	for _, b := range binaries {
		if !slices.Contains(o.Archs, b.arch) {
			continue
		}
		a := &artefact{Options: o, binary: b, config: config, scratch: scratch, summary: summary(help)}
		if err := a.collect(ctx); err != nil {
			return "", nil, err
		}
		for _, write := range []func(context.Context, string) error{a.zip, a.packages, a.sbom} {
			if err := write(ctx, dir); err != nil {
				return "", nil, err
			}
		}
	}
	if err := writeSums(dir); err != nil {
		return "", nil, err
	}
	files, err := listed(dir)
	return version, files, err
}
