// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package nix does what can be done of the flake's builds without nixpkgs: it evaluates them on a stub (nix/stub), and
// runs their phases with the go command of this machine. So the hash of what they vendor is known without a build.
package nix

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Eval evaluates an attribute of nix/stub/outputs.nix, or a call of one: `build "usb"`.
func Eval(ctx context.Context, root, attribute string, value any) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	// without a store nothing is written
	out, err := run(ctx, root, "nix-instantiate", "--store", "dummy://", "--eval", "--strict", "--json",
		"--expr", fmt.Sprintf("(import (/. + %q)).%s", filepath.Join(root, "nix/stub/outputs.nix"), attribute))
	if err != nil {
		return fmt.Errorf("failed to evaluate %s of the flake: %w", attribute, err)
	}
	if err := json.Unmarshal([]byte(out), value); err != nil {
		return fmt.Errorf("failed to read %s of the flake: %w", attribute, err)
	}
	return nil
}

// EvalNode evaluates a NixOS module, a file, as the configuration of a node that has the flake's module.
func EvalNode(ctx context.Context, root, file string, n *Node) error {
	return Eval(ctx, root, fmt.Sprintf("node (/. + %q)", file), n)
}

// Node is the configuration of a node as far as the flake's module sets it.
type Node struct {
	Plugins        []string // their binaries
	DropPrivileges bool
	Refused        []string // the messages of assertions that do not hold
	Settings       struct { // the agent's
		Plugin map[string]any `json:"plugin"`
		Client map[string]any `json:"client"`
	}
}

// run runs a program of Nix.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	// no settings of this machine: neither its registry nor its builders
	cmd.Env = append(os.Environ(), "NIX_CONF_DIR=/dev/null", "NIX_USER_CONF_FILES=", "NIX_CONFIG="+
		"experimental-features = nix-command flakes\nflake-registry =\nbuild-users-group =")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%s is not installed (Debian: apt-get install nix-bin): %w", name, err)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}
