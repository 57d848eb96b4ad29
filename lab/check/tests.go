// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/gotool"
)

// resultsDir is the directory of the events of the last test runs (go doc test2json).
const resultsDir = "bin/test"

// Test runs the tests of every module except the long ones (see testsupport.Long). Five packages run at a time, even on
// fewer processors, because tests mostly wait. The packages that take longest start first, and small ones last.
func Test(ctx context.Context, root string) error {
	plugins, err := pluginPackages(root)
	if err != nil {
		return err
	}
	slow := []string{
		"./lab/e2e/...", "./internal/core/supervisor", "./plugins/remote/...", "./internal/core/driver",
		"./internal/core/device", "./internal/core/launch", "./lab/...",
	}
	return run(ctx, root, "test", slices.Concat(slow, plugins, []string{"work"}), "-short", "-p=5")
}

// pluginPackages returns a pattern for the packages of each plugin.
func pluginPackages(root string) ([]string, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "plugins", "*"))
	for i, dir := range dirs {
		dirs[i] = "./plugins/" + filepath.Base(dir) + "/..."
	}
	return dirs, err
}

// TestAll runs every test. The packages of lab/ run last, even if earlier tests have failed. They run one at a time:
// two packages with virtual machines or real agents are too much for a small machine.
func TestAll(ctx context.Context, root string) error {
	plugins, err := pluginPackages(root)
	if err != nil {
		return err
	}
	light := append([]string{"./internal/core/supervisor", "./internal/core/..."}, plugins...) // the slowest package first
	first := run(ctx, root, "all", light, "-p=4", "-timeout=60m")
	return errors.Join(first, run(ctx, root, "all-lab", []string{"./lab/..."}, "-p=1", "-timeout=60m"))
}

// TestModule compiles the module in dir, a folder of the repository, by the module's go.mod alone, as a release does.
// Then it runs the module's tests, except long ones and those of lab/e2e.
func TestModule(ctx context.Context, root, dir string, race bool) error {
	units, err := unitTests(ctx, root, dir)
	if err != nil {
		return err
	}
	flags := []string{"-short", "-p=4"}
	if race {
		flags = append(flags, "-race")
	}
	return run(ctx, root, "module", units, flags...)
}

// unitTests builds the module in dir alone, and returns its packages except those of lab/e2e.
func unitTests(ctx context.Context, root, dir string) ([]string, error) {
	_, err := output(ctx, append(goEnv(ctx, root), "GOWORK=off"), filepath.Join(root, dir), "go", "build", "./...")
	if err != nil {
		return nil, err
	}
	out, err := output(ctx, nil, root, "go", "list", "./"+filepath.Join(dir, "..."))
	return slices.DeleteFunc(strings.Fields(out), func(pkg string) bool {
		return strings.Contains(pkg+"/", "/lab/e2e/")
	}), err
}

// run runs the tests of packages with additional flags of go test. Resources that the tests leave behind are an error.
func run(ctx context.Context, root, name string, packages []string, flags ...string) error {
	left, err := newLeftovers()
	if err != nil {
		return err
	}
	err = gotestsum(ctx, root, name, left.dir, packages, flags...)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, left.check(ctx))
}

// gotestsum runs tests and prints failures. It reruns a failed test alone, up to twice, unless more than five fail.
func gotestsum(ctx context.Context, root, name, tmp string, packages []string, flags ...string) error {
	program, err := gotool.Path(ctx, root, "gotestsum")
	if err != nil {
		return err
	}
	events := filepath.Join(root, resultsDir, name+".json")
	err = os.MkdirAll(filepath.Dir(events), 0o755)
	if err != nil {
		return err
	}
	args := []string{
		"--format=pkgname", "--format-hide-empty-pkg", "--hide-summary=skipped", "--jsonfile=" + events,
		"--rerun-fails=2", "--rerun-fails-max-failures=5", "--packages=" + strings.Join(packages, " "), "--",
		// Cached results would miss changes of the binaries that the tests start. `go tool mage lint` runs go vet. With
		// -trimpath, checkouts share compiled packages. Linking without debug information takes half the time.
		"-count=1", "-vet=off", "-trimpath", "-ldflags=-s -w", "-timeout=20m",
	}
	cmd := exec.CommandContext(ctx, program, append(args, flags...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stdout, os.Stderr
	cmd.Env = append(goEnv(ctx, root), "TMPDIR="+tmp)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // SIGINT, on which the tests clean up
	cmd.WaitDelay = time.Minute
	failure := cmd.Run()
	file, err := os.Open(events)
	if err != nil {
		return errors.Join(failure, err)
	}
	defer file.Close()
	return errors.Join(failure, judge(os.Stdout, file, os.Getenv("CI") != ""))
}
