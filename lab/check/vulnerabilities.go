// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/outrider-dev/outrider/lab/internal/gotool"
)

// Vulnerabilities prints the known vulnerabilities of which code of the workspace can reach the function, and is an
// error if there is one. They come from vuln.go.dev, or the database at another URL.
func Vulnerabilities(ctx context.Context, root, db string) error {
	program, err := gotool.Path(ctx, root, "govulncheck")
	if err != nil {
		return err
	}
	return vulnerabilities(ctx, root, program, db)
}

func vulnerabilities(ctx context.Context, root, program, db string) error {
	modules, err := Modules(ctx, root)
	if err != nil {
		return err
	}
	args := []string{"-tags=mage"}
	if db != "" {
		args = append(args, "-db="+db)
	}
	for _, dir := range modules {
		args = append(args, filepath.Join(dir, "..."))
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = modules[0], goEnv(ctx, root), os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("govulncheck: %w", err)
	}
	return nil
}
