// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package nix updates the hash in the flake. The hash covers the Go packages that core and plugins import.
package nix

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

// vendor is a script with the steps of nix/packages.nix. It copies the source to $1, and prints the hash to compare.
const vendor = `cp -r --parents go.work go.work.sum internal/core plugins "$1" && cd "$1"
go work edit -dropuse=. -dropuse=./lab
GOFLAGS= go work vendor >&2
nix --extra-experimental-features nix-command hash path vendor`

var vendorHash = regexp.MustCompile(`sha256-[^"]+`)

// UpdateHash computes the hash for the repository at root, and writes it to nix/packages.nix.
func UpdateHash(ctx context.Context, root string) error {
	if _, err := exec.LookPath("nix"); err != nil {
		return fmt.Errorf("nix is not installed (Debian: apt-get install nix-bin): %w", err)
	}
	file := filepath.Join(root, "nix", "packages.nix")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	has := vendorHash.Find(text)
	dir, err := os.MkdirTemp("", "outrider-nix")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	cmd := exec.CommandContext(ctx, "sh", "-euc", vendor, "sh", dir)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("failed to hash the packages that plugins import: %w", err)
	}
	want := bytes.TrimSpace(out)
	if bytes.Equal(has, want) {
		fmt.Printf("the hash is up to date: %s\n", has)
		return nil
	}
	fmt.Printf("%s: hash %s instead of %s\n", file, want, has)
	return os.WriteFile(file, vendorHash.ReplaceAll(text, want), 0o644)
}
