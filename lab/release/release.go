// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package release builds the published files of a plugin with goreleaser: for each architecture a zip, a deb, an rpm
// and a list of the binary's modules (SBOM), and the checksums of all files. The same commit gives the same bytes.
package release

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/gotool"
)

// Archs are the published architectures, by Go's names.
var Archs = []string{"amd64", "arm64"}

// Options select the releases to build.
type Options struct {
	Root   string   // path of the checkout
	Plugin string   // name of a plugin; empty: every plugin
	Archs  []string // empty: every published architecture
}

// Result is one plugin's release.
type Result struct {
	Plugin  build.Plugin
	Version string   // without a leading v
	Dir     string   // directory of the files, dist/NAME
	Files   []string // names of the files
}

// resolve sets the defaults, and returns the selected plugins.
func (o *Options) resolve() ([]build.Plugin, error) {
	var err error
	if o.Root, err = build.Root(o.Root); err != nil {
		return nil, err
	}
	if len(o.Archs) == 0 {
		o.Archs = Archs
	}
	plugins, err := build.Plugins(o.Root)
	if err == nil && o.Plugin != "" {
		plugins, err = build.Select(plugins, o.Plugin)
	}
	return plugins, err
}

// Build builds releases from the checkout, with its uncommitted changes. The version is the one that the go command
// stamps: the tag's, if the commit has a tag and the checkout has no changes.
func Build(ctx context.Context, o Options) ([]Result, error) {
	plugins, err := o.resolve()
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, p := range plugins {
		r, err := one(ctx, o, p)
		if err != nil {
			return nil, fmt.Errorf("failed to build the release of %s: %w", p.Name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// one builds a plugin's release in a scratch directory, and then puts it in place of an earlier release.
func one(ctx context.Context, o Options, p build.Plugin) (r Result, err error) {
	dist := filepath.Join(o.Root, "dist")
	if err := os.MkdirAll(dist, 0o755); err != nil {
		return r, err
	}
	scratch, err := os.MkdirTemp(dist, ".new-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()

	c, err := staged(ctx, o, p, scratch)
	if err != nil {
		return r, err
	}
	if err := c.goreleaser(ctx, o.Root); err != nil {
		return r, err
	}
	r = Result{Plugin: p, Version: c.Version, Dir: filepath.Join(dist, p.Name)}
	if err := os.RemoveAll(r.Dir); err != nil {
		return r, err
	}
	if err := os.Mkdir(r.Dir, 0o755); err != nil {
		return r, err
	}
	for _, pattern := range []string{"*.zip", "*.deb", "*.rpm", "*.cdx.json", "SHA256SUMS"} {
		found, err := filepath.Glob(filepath.Join(scratch, "goreleaser", pattern))
		if err != nil {
			return r, err
		}
		for _, path := range found {
			r.Files = append(r.Files, filepath.Base(path))
			if err := os.Rename(path, filepath.Join(r.Dir, filepath.Base(path))); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// settings are the data for goreleaser.yaml.tmpl.
type settings struct {
	build.Plugin
	Version     string // without a leading v
	Commit, Ref string // Ref is the tag, or the commit if the version is untagged
	Archs       []string
	Scratch     string   // directory in dist: block.hcl, goreleaser's output, and stage with the zip's files
	Files, Dirs []string // in stage
	SBOM        string   // path of the program cyclonedx-gomod
}

//go:embed goreleaser.yaml.tmpl
var configuration string

// yaml returns goreleaser's configuration of the plugin.
func (c *settings) yaml() ([]byte, error) {
	functions := template.FuncMap{"join": strings.Join}
	t := template.Must(template.New("goreleaser.yaml").Delims("[[", "]]").Funcs(functions).Parse(configuration))
	var text bytes.Buffer
	err := t.Execute(&text, c)
	return text.Bytes(), err
}

// goreleaser runs goreleaser for one architecture after the other, because all embed the supervisor from the same path.
// It skips the check of the tag: this repository's tags have a plugin's folder before the version.
func (c *settings) goreleaser(ctx context.Context, root string) error {
	tool, err := gotool.Path(ctx, root, "goreleaser")
	if err != nil {
		return err
	}
	if c.SBOM, err = gotool.Path(ctx, root, "cyclonedx-gomod"); err != nil {
		return err
	}
	text, err := c.yaml()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, tool, "release", "-f", "-", "--parallelism=1", "--skip=validate,publish,announce")
	cmd.Dir, cmd.Stdin = root, bytes.NewReader(text)
	cmd.Env = append(os.Environ(), "GORELEASER_CURRENT_TAG=v"+c.Version)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("failed to run goreleaser: %w\n%s", err, out)
	}
	return nil
}

// output returns the output of a command, which gets env in addition to this process's environment.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
