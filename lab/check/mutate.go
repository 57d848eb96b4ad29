// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/gotool"
)

// The limits of a run. A mutant that never ends is killed after so many times the duration of
// the package's tests.
const (
	mutationLimit      = 2 * time.Hour
	timeoutCoefficient = "10"
)

// Mutate runs a package's tests on mutants of the package, prints those that no test notices,
// and what part of them is noticed: the efficacy. Mutants of code that is root's signal and
// remove what is not theirs, so it runs in namespaces of its own.
func Mutate(ctx context.Context, root, pkg string) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can: the mutants run in namespaces of their own")
	}
	dir, err := output(ctx, nil, root, "go", "list", "-f", "{{.Module.Dir}} {{.Dir}}", "./"+filepath.Clean(pkg))
	if err != nil {
		return fmt.Errorf("there is no package %s: %w\n%s", pkg, err, dir)
	}
	module, dir, _ := strings.Cut(strings.TrimSpace(dir), " ")
	within, err := filepath.Rel(module, dir)
	if err != nil {
		return err
	}
	program, err := gotool.Path(ctx, root, "gremlins")
	if err != nil {
		return err
	}
	cache, err := output(ctx, nil, root, "go", "env", "GOCACHE")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, mutationLimit)
	defer cancel()
	sandbox, err := filepath.Abs(filepath.Join(root, "lab", "check", "mutate.sh"))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", sandbox, program, "unleash",
		"--workers=1", "--timeout-coefficient="+timeoutCoefficient, "./"+within)
	cmd.Dir, cmd.Stdout, cmd.Stderr = module, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false", "WRITABLE="+strings.TrimSpace(cache))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("gremlins: %w", err), ctx.Err())
	}
	return nil
}
