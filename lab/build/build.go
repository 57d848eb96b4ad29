// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package build compiles the plugins. The supervisor comes first, because each plugin embeds it. The go command skips
// packages that have not changed.
package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/outrider-dev/outrider/lab/internal/gobuild"
)

const (
	supervisorPackage = "cmd/outrider-supervisor"                               // relative to internal/core
	supervisorBinary  = "internal/core/supervisor/embedded/outrider-supervisor" // relative to the repository
)

// Builder builds the programs of this repository for one architecture.
type Builder struct {
	Root string // the repository's directory
	Arch string // GOARCH; if empty, this machine's. GOOS is always linux.
	Bin  string // the directory of the plugin binaries; if empty, Root/bin

	// Static builds without C libraries, even libusb: the programs run on any Linux.
	Static bool

	// Release builds programs for publication: each by its module's go.mod, without symbols, for the oldest processors of
	// the architecture, and unaffected by the user's settings of the go command.
	Release bool
}

// Root returns the root of the repository that dir is in: the closest directory, from dir upwards, that has a go.work.
func Root(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.work")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.work in %s or its parents: run this in a checkout of Outrider", dir)
		}
	}
}

// ForContainer returns a Builder for programs that need no library of the container's image, in a separate folder.
func (b Builder) ForContainer() Builder {
	b.Static, b.Bin = true, filepath.Join(b.bin(), "static")
	return b
}

// Supervisor builds the supervisor, a static program. Its binary, which git ignores, is next to the source that embeds
// it, because //go:embed cannot reach other folders.
func (b Builder) Supervisor(ctx context.Context) error {
	core := filepath.Join(b.Root, "internal", "core")
	// A version control stamp would change the bytes with each commit, and a plugin replaces a running supervisor whose
	// bytes differ from those that it embeds.
	_, err := b.goBuild(ctx, "the supervisor", core, b.SupervisorPath(), false,
		"-buildvcs=false", "-ldflags", "-s -w", "./"+supervisorPackage)
	return err
}

// SupervisorPath returns the path of the program that Supervisor builds.
func (b Builder) SupervisorPath() string { return filepath.Join(b.Root, supervisorBinary) }

// Plugin builds one plugin and returns its path. Call Supervisor first.
func (b Builder) Plugin(ctx context.Context, p Plugin) (string, error) {
	cgo := p.Libusb && b.Libusb(ctx) == nil
	args := []string{b.vcs(ctx), "-tags", "embed_supervisor"}
	if b.Release {
		args = append(args, "-ldflags", "-s -w")
	}
	return b.goBuild(ctx, p.Name, p.Dir, filepath.Join(b.bin(), p.Binary), cgo, append(args, ".")...)
}

// Stick builds the static program that simulates a USB stick, and writes it to path.
func (b Builder) Stick(ctx context.Context, path string) error {
	_, err := b.goBuild(ctx, "the simulated stick", filepath.Join(b.Root, "lab"), path, false, "-buildvcs=false",
		"./usb-stick")
	return err
}

// All builds the named plugins, or every plugin, and returns their paths.
func (b Builder) All(ctx context.Context, names ...string) ([]string, error) {
	plugins, err := Plugins(b.Root)
	if err != nil {
		return nil, err
	}
	if plugins, err = Select(plugins, names...); err != nil {
		return nil, err
	}
	if len(plugins) == 0 {
		return nil, nil
	}
	if err := b.Supervisor(ctx); err != nil {
		return nil, err
	}
	var paths []string
	for _, p := range plugins {
		path, err := b.Plugin(ctx, p)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func (b Builder) bin() string {
	if b.Bin != "" {
		return b.Bin
	}
	return filepath.Join(b.Root, "bin")
}

// vcs returns go build's flag for the version control stamp, from which a plugin takes its version. It overrides
// GOFLAGS. The stamp is off if git fails (no checkout, no git, another user's checkout), because go build would fail
// too.
func (b Builder) vcs(ctx context.Context) string {
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "--verify", "--quiet", "HEAD")
	cmd.Dir = b.Root
	if cmd.Run() != nil {
		return "-buildvcs=false"
	}
	return "-buildvcs=true"
}

// Env returns the variables to set for the go command, in addition to this process's, to build with or without cgo.
func (b Builder) Env(cgo bool) []string {
	env := []string{"GOOS=linux", "GOARCH=" + b.arch()}
	if !cgo {
		env = append(env, "CGO_ENABLED=0")
	}
	if b.Release {
		env = append(env, "GOWORK=off", "GOFLAGS=-mod=readonly", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=",
			"GOFIPS140=off")
	}
	return env
}

// goBuild builds a package of the module in dir into out, and returns out as an absolute path. Errors contain name.
func (b Builder) goBuild(ctx context.Context, name, dir, out string, cgo bool, args ...string) (string, error) {
	out, err := filepath.Abs(out)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(out), 0o755)
	}
	if err == nil {
		args = append([]string{"-trimpath", "-o", out}, args...)
		err = gobuild.Build{Dir: dir, Env: b.Env(cgo), Args: args}.Run(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("failed to build %s: %w", name, err)
	}
	return out, nil
}

func (b Builder) arch() string {
	if b.Arch != "" {
		return b.Arch
	}
	return runtime.GOARCH
}
