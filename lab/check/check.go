// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package check runs what has to hold before a change goes in: the linters and the tests of
// every module, with the end-to-end tests.
package check

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
)

// Modules lists the directories of the workspace's modules. `./...` in the root does not
// match packages of other modules.
func Modules(ctx context.Context, root string) ([]string, error) {
	out, err := output(ctx, nil, root, "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return nil, fmt.Errorf("failed to list the modules: %w\n%s", err, out)
	}
	return strings.Fields(out), nil
}

// packages lists the import paths of the packages of modules, which are named by their folders in the repository.
func packages(ctx context.Context, root string, modules ...string) ([]string, error) {
	args := []string{"list"}
	for _, dir := range modules {
		args = append(args, "./"+filepath.Join(dir, "..."))
	}
	out, err := output(ctx, nil, root, "go", args...)
	if err != nil {
		return nil, fmt.Errorf("failed to list the packages: %w\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n") // among them may be what the go command downloads
	return slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "go: ") }), nil
}

// goEnv is the environment in which everything compiles, as the plugins are built: without
// cgo if libusb is missing.
func goEnv(ctx context.Context, root string) []string {
	if (build.Builder{Root: root}).Libusb(ctx) != nil {
		return append(os.Environ(), "CGO_ENABLED=0")
	}
	return os.Environ()
}

// output runs a command in a directory and returns what it writes to both streams, also with
// an error. A nil environment is this process's.
func output(ctx context.Context, env []string, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	return string(out), err
}
