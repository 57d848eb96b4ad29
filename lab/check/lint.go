// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/lab/internal/gotool"
)

// Lint runs golangci-lint over every module and the magefile, with the settings of .golangci.yml; actionlint over the
// workflows; and shellcheck over the scripts.
func Lint(ctx context.Context, root string) error {
	return errors.Join(lintGo(ctx, root), lintWorkflows(ctx, root), lintScripts(ctx, root), lintWords(ctx, root))
}

func lintGo(ctx context.Context, root string) error {
	program, err := gotool.Path(ctx, root, "golangci-lint")
	if err != nil {
		return err
	}
	args := []string{"run", "--build-tags=mage", "--path-mode=abs", "--allow-parallel-runners", "--timeout=15m", "--"}
	modules, err := Modules(ctx, root)
	for _, dir := range modules {
		args = append(args, filepath.Join(dir, "..."))
	}
	if err == nil {
		// in a cache that checkouts share, findings would name files of another checkout
		env := append(goEnv(ctx, root), "GOLANGCI_LINT_CACHE="+filepath.Join(modules[0], "bin", ".golangci-lint"))
		_, err = output(ctx, env, root, program, args...)
	}
	return err
}

// lintWorkflows checks the workflows, and the scripts in them with shellcheck.
func lintWorkflows(ctx context.Context, root string) error {
	program, err := gotool.Path(ctx, root, "actionlint")
	if err == nil {
		_, err = output(ctx, nil, root, program, "-no-color", "-shellcheck=shellcheck")
	}
	return err
}

// lintScripts checks every file that git tracks whose first line names a shell as interpreter.
func lintScripts(ctx context.Context, root string) error {
	lines, err := output(ctx, nil, root, "git", "grep", "-nIE", `^#!.*\b(ba|da)?sh\b`)
	if err != nil {
		return err
	}
	args := []string{"--color=never", "--"}
	for line := range strings.Lines(lines) {
		name, _, first := strings.Cut(line, ":1:")
		if first {
			args = append(args, name)
		}
	}
	_, err = output(ctx, nil, root, "shellcheck", args...)
	return err
}
