// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package build compiles the plugin binaries: first the supervisor, which is embedded, then each plugin. The go
// command decides what is up to date.
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
	supervisorPackage = "cmd/outrider-supervisor"                               // in internal/core
	supervisorBinary  = "internal/core/supervisor/embedded/outrider-supervisor" // in the repository
)

// Builder builds for one target.
type Builder struct {
	Root string // of the repository
	Arch string // GOARCH; empty: this machine's. The system is always Linux.
	Bin  string // directory of the plugin binaries; empty: Root/bin

	// Static builds programs that need no library of the machine they run on, even if a plugin could use libusb.
	Static bool

	// Release builds programs to publish: each module alone, by its own go.mod, for every processor of the
	// architecture, without symbols, independently of the user's environment.
	Release bool
}

// Root finds the repository that a directory is in, by its go.work.
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
			return "", fmt.Errorf("no go.work in %s or above: use a checkout of Outrider", dir)
		}
	}
}

// ForContainer returns a Builder of programs that need no library of the image. They are built into a separate folder.
func (b Builder) ForContainer() Builder {
	b.Static, b.Bin = true, filepath.Join(b.bin(), "static")
	return b
}

// Supervisor builds the static binary that plugins embed. The go command embeds files only from the module's own
// folder, so the binary is put there (and git-ignored).
func (b Builder) Supervisor(ctx context.Context) error {
	core := filepath.Join(b.Root, "internal", "core")
	// no version control stamp: the same source must give the same bytes, or the plugins
	// of each commit would replace a running supervisor
	_, err := b.goBuild(ctx, "the supervisor", core, b.SupervisorPath(), false,
		"-buildvcs=false", "-ldflags", "-s -w", "./"+supervisorPackage)
	return err
}

// SupervisorPath returns the path of the program that Supervisor builds.
func (b Builder) SupervisorPath() string { return filepath.Join(b.Root, supervisorBinary) }

// Plugin builds one plugin and returns its path. Supervisor must be called first.
func (b Builder) Plugin(ctx context.Context, p Plugin) (string, error) {
	cgo := p.Libusb && b.Libusb(ctx) == nil
	args := []string{b.vcs(ctx), "-tags", "embed_supervisor"}
	if b.Release {
		args = append(args, "-ldflags", "-s -w")
	}
	return b.goBuild(ctx, p.Name, p.Dir, filepath.Join(b.bin(), p.Binary), cgo, append(args, ".")...)
}

// Stick builds the static program that simulates a USB stick, at path.
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

// vcs returns a flag that turns the version control stamp (for a plugin's version) on, even if GOFLAGS turns it off. If
// git fails (no checkout, no git, another user's checkout), the flag turns the stamp off, because go build would fail.
func (b Builder) vcs(ctx context.Context) string {
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "--verify", "--quiet", "HEAD")
	cmd.Dir = b.Root
	if cmd.Run() != nil {
		return "-buildvcs=false"
	}
	return "-buildvcs=true"
}

// Env returns the variables that the go command needs in addition to this process's, for a program with cgo or without.
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

// goBuild builds a package of the module in dir, and returns the program's absolute path.
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
