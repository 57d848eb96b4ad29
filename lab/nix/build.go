// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nix

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Build is the build of a package, with a copy of its source.
type Build struct {
	VendorHash, Version, Binary string
	SubPackages, Tags, Ldflags  []string
	CGO                         int

	PostPatch, Vendor, PreBuild, PostInstall, InstallCheckPhase string // commands of bash

	Files []string // absolute
	dir   string
}

// NewBuild copies the source of a package ("exec-lite") to a directory that does not exist yet.
func NewBuild(ctx context.Context, root, name, dir string) (*Build, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	b := &Build{dir: dir}
	if err := Eval(ctx, root, fmt.Sprintf("build %q", name), b); err != nil {
		return nil, err
	}
	for _, file := range b.Files {
		below, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		if err := copyTree(file, filepath.Join(dir, below)); err != nil {
			return nil, fmt.Errorf("failed to copy the source: %w", err)
		}
	}
	return b, nil
}

func copyTree(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

// Modules vendors what the package imports, as the derivation with the modules does, and returns the hash of that.
func (b *Build) Modules(ctx context.Context) (string, error) {
	if err := b.Phase(ctx, b.PostPatch); err != nil {
		return "", err
	}
	if err := b.Phase(ctx, b.Vendor); err != nil {
		return "", err
	}
	return run(ctx, b.dir, "nix", "hash", "path", "--type", "sha256", "--sri", "vendor")
}

// Phase runs commands of a build, with the environment of buildGoModule.
func (b *Build) Phase(ctx context.Context, commands string, env ...string) error {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "GOWORK=", "GO111MODULE=on", "GOTOOLCHAIN=local", "GOFLAGS=-mod=vendor -trimpath",
		fmt.Sprint("CGO_ENABLED=", b.CGO))
	cmd.Env = append(cmd.Env, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.TrimSpace(commands), err, out)
	}
	return nil
}
