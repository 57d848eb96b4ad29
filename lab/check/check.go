// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package check runs the tests of every module with the gotestsum that .ci/tools pins. The package's own tests check
// rules that no linter covers: versions of modules, licence headers, pages, workflows.
package check

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
)

// goEnv returns the environment for the go command that also builds the plugins: without cgo if libusb is missing.
func goEnv(ctx context.Context, root string) []string {
	b := build.Builder{Root: root}
	return append(os.Environ(), b.Env(b.Libusb(ctx) == nil)...)
}

// output runs a command in dir, and returns its standard output and error as one string. If the command fails, the
// error contains them too. If env is nil, the command inherits this process's environment.
func output(ctx context.Context, env []string, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args[:min(len(cmd.Args), 3)], " "), err, out)
	}
	return string(out), err
}
