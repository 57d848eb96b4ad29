// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/mod/module"

	"github.com/outrider-dev/outrider/lab/build"
)

// binary is a plugin that was compiled for an architecture, with what the go command stamped into it.
type binary struct {
	plugin build.Plugin
	arch   string
	path   string
	info   *debug.BuildInfo
	time   time.Time // of the commit
}

// compile builds the plugin with the supervisor in it, in a folder of the scratch directory.
func compile(ctx context.Context, o Options, p build.Plugin, arch, scratch string) (binary, error) {
	b := binary{plugin: p, arch: arch}
	builder := build.Builder{Root: o.Root, Arch: arch, Bin: filepath.Join(scratch, arch), Static: true, Release: true,
		Progress: o.Progress}
	paths, err := builder.All(ctx, p.Name)
	if err != nil {
		return b, err
	}
	b.path = paths[0]
	return b, b.readInfo()
}

// readInfo reads the stamp of the binary.
func (b *binary) readInfo() (err error) {
	if b.info, err = buildinfo.ReadFile(b.path); err != nil {
		return err
	}
	if b.time, err = time.Parse(time.RFC3339, b.setting("vcs.time")); err != nil || b.setting("vcs.revision") == "" {
		return fmt.Errorf("%s has no commit stamped: is it a git checkout, with the git program on PATH?", b.plugin.Binary)
	}
	b.time = b.time.UTC()
	return nil
}

// version is that of the binary without a leading v: "0.1.0", or "0.0.0-20261123001500-0123456789ab+dirty".
func (b *binary) version() string { return strings.TrimPrefix(b.info.Main.Version, "v") }

func (b *binary) dirty() bool { return b.setting("vcs.modified") != "false" }

func (b *binary) tagged() bool { return !b.dirty() && !module.IsPseudoVersion(b.info.Main.Version) }

// setting is one of those that `go version -m` prints after "build".
func (b *binary) setting(key string) string {
	for _, s := range b.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// output is what the binary prints for a command. It has to be for this machine.
func (b *binary) output(ctx context.Context, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, b.path, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("failed to run %s %s: %w", b.plugin.Binary, strings.Join(args, " "), err)
	}
	return out, nil
}
