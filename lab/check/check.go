// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package check runs the linters and the tests of every module, by the tools that .ci/tools pins. Its tests hold what
// no tool knows: versions of modules, headers, pages, workflows.
package check

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
)

// Modules lists the directories of the workspace's modules, that of the root first, which has no packages but the
// magefile.
func Modules(ctx context.Context, root string) ([]string, error) {
	out, err := output(ctx, nil, root, "go", "list", "-m", "-f", "{{.Dir}}")
	return strings.Fields(out), err
}

// goEnv is the environment in which everything compiles, as the plugins are built: without cgo if libusb is missing.
func goEnv(ctx context.Context, root string) []string {
	if (build.Builder{Root: root}).Libusb(ctx) != nil {
		return append(os.Environ(), "CGO_ENABLED=0")
	}
	return os.Environ()
}

// output runs a command in a directory and returns what it writes to both streams, which an error has, too. A nil
// environment is this process's.
func output(ctx context.Context, env []string, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args[:min(len(cmd.Args), 3)], " "), err, out)
	}
	return string(out), err
}
