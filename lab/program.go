// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"github.com/outrider-dev/outrider/lab/internal/gobuild"
)

// RunProgram runs a program of this repository on the caller's terminal. The program also gets ^C, and can clean up.
// With `go run` every failure would be exit status 1.
func RunProgram(ctx context.Context, pkg string, args ...string) error {
	l, err := New()
	if err != nil {
		return err
	}
	ctx, stop := UntilInterrupt(ctx)
	defer stop()
	dir, err := os.MkdirTemp("", "outrider-program-")
	if err != nil {
		return fmt.Errorf("failed to compile %s: %w", pkg, err)
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, path.Base(pkg))
	end := l.step(ctx, "Compiling %s", pkg)
	err = gobuild.Build{Dir: l.root, Args: []string{"-o", program, pkg}}.Run(ctx)
	end(err, "")
	if err != nil && cancelled(ctx) {
		return Interrupted("nothing was started")
	}
	if err != nil {
		return fmt.Errorf("failed to compile %s: %w", pkg, err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, l.out, l.errOut
	err = cmd.Run()
	switch {
	case err != nil && ctx.Err() != nil:
		return Interrupted(fmt.Sprintf("%s ended with: %v", pkg, err))
	case ctx.Err() != nil:
		return Interrupted("nothing of it is left running")
	case err != nil:
		return fmt.Errorf("failed to run %s: %w", pkg, err)
	}
	return nil
}
