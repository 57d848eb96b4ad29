// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nix

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// anyPlugin stands for all packages: they have the same source and the same vendored packages.
const anyPlugin = "exec-lite"

// Hash returns the hash of the vendored packages that the flake has, and the true one.
func Hash(ctx context.Context, root string) (has, want string, err error) {
	dir, err := os.MkdirTemp("", "outrider-nix")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(dir)
	b, err := NewBuild(ctx, root, anyPlugin, filepath.Join(dir, "source"))
	if err != nil {
		return "", "", err
	}
	want, err = b.Modules(ctx)
	if err != nil {
		return "", "", fmt.Errorf("failed to vendor what the plugins import: %w", err)
	}
	return b.VendorHash, want, nil
}

// UpdateHash writes the true hash into the flake.
func UpdateHash(ctx context.Context, root string) error {
	has, want, err := Hash(ctx, root)
	if err != nil {
		return err
	}
	if has == want {
		fmt.Println("the hash is up to date:", has)
		return nil
	}
	file := filepath.Join(root, "nix", "packages.nix")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), has); n != 1 {
		return fmt.Errorf("%s has the hash %s %d times, want once", file, has, n)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), has, want, 1)), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %s instead of %s\n", file, want, has)
	return nil
}
