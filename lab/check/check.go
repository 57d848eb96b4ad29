// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package check runs the linters and the tests of every module, with the tools that .ci/tools pins. Its own tests check
// rules that no tool covers: versions of modules, licence headers, pages, workflows.
package check

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
)

// Modules lists the directories of the workspace's modules. The root comes first; its only package is the magefile.
func Modules(ctx context.Context, root string) ([]string, error) {
	out, err := output(ctx, nil, root, "go", "list", "-m", "-f", "{{.Dir}}")
	return strings.Fields(out), err
}

// goEnv returns the environment of the go command, as for building plugins: without cgo if libusb is missing.
func goEnv(ctx context.Context, root string) []string {
	if (build.Builder{Root: root}).Libusb(ctx) != nil {
		return append(os.Environ(), "CGO_ENABLED=0")
	}
	return os.Environ()
}

// output runs a command in dir and returns the output of both streams, which is also part of an error. A nil env means
// this process's.
func output(ctx context.Context, env []string, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args[:min(len(cmd.Args), 3)], " "), err, out)
	}
	return string(out), err
}
