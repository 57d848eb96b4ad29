// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// RunProgram runs a program of this repository on the caller's terminal, and lets the program clean up after ^C.
func RunProgram(ctx context.Context, pkg string, args ...string) error {
	ctx, stop := UntilInterrupt(ctx)
	defer stop()
	cmd := exec.Command("go", append([]string{"run", pkg}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return Interrupted(pkg + " has ended")
	}
	if err != nil {
		return fmt.Errorf("failed to run %s: %w", pkg, err)
	}
	return nil
}
