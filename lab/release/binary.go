// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/module"

	"github.com/outrider-dev/outrider/lab/build"
)

// binary is a plugin that was compiled for an architecture, with what the go command stamped into it.
type binary struct {
	plugin     build.Plugin
	arch       string
	libusb     bool // it is the kind that is linked with libusb
	builder    build.Builder
	path       string
	supervisor string // path of the program that is embedded
	info       *debug.BuildInfo
	time       time.Time // of the commit
}

// compileAll builds every kind of the plugin for each architecture. The last is the static one for this machine, also
// if its architecture is not asked for: it can be run, and its supervisor stays in the checkout.
func compileAll(ctx context.Context, o Options, p build.Plugin, scratch string) ([]binary, error) {
	archs := slices.DeleteFunc(slices.Clone(o.Archs), func(arch string) bool { return arch == runtime.GOARCH })
	var binaries []binary
	for _, arch := range append(archs, runtime.GOARCH) {
		builder := build.Builder{Root: o.Root, Arch: arch, Release: true, Progress: o.Progress}
		if p.Libusb && (o.Libusb == nil || *o.Libusb) && slices.Contains(o.Archs, arch) {
			var err error
			builder.Sysroot, err = sysroot(ctx, arch, o.Progress)
			switch {
			case err == nil:
				b, err := compile(ctx, builder, p, filepath.Join(scratch, arch+"-libusb"))
				if err != nil {
					return nil, err
				}
				binaries = append(binaries, b)
			case o.Libusb != nil || ctx.Err() != nil:
				return nil, err
			default:
				o.Say("%s for %s: not made in the kind with libusb: %v", p.Name, arch, err)
			}
		}
		builder.Sysroot, builder.Static = "", true
		b, err := compile(ctx, builder, p, filepath.Join(scratch, arch))
		if err != nil {
			return nil, err
		}
		binaries = append(binaries, b)
	}
	return binaries, nil
}

// compile builds the plugin with the supervisor in it, into a folder.
func compile(ctx context.Context, builder build.Builder, p build.Plugin, dir string) (binary, error) {
	builder.Bin = dir
	b := binary{plugin: p, arch: builder.Arch, libusb: !builder.Static, builder: builder}
	paths, err := builder.All(ctx, p.Name)
	if err != nil {
		return b, err
	}
	b.path, b.supervisor = paths[0], filepath.Join(builder.Bin, "outrider-supervisor")
	text, err := os.ReadFile(builder.SupervisorPath())
	if err == nil {
		err = os.WriteFile(b.supervisor, text, 0o700)
	}
	if err == nil {
		err = b.readInfo()
	}
	return b, err
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

// name is that of the package and of its files: nomad-driver-exec-lite.
func (b *binary) name() string {
	if b.libusb {
		return b.plugin.Binary + "-libusb"
	}
	return b.plugin.Binary
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
