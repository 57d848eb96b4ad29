// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/gotool"
)

// resultsDir has what the last run of the tests wrote, in the root of the repository: events as JSON (go doc
// test2json) and a JUnit file for each step.
const resultsDir = "bin/test"

// Test runs the tests of every module but those that testsupport.Long leaves to TestAll.
func Test(ctx context.Context, root string) error {
	modules, err := Changed(ctx, root, "")
	if err != nil {
		return err
	}
	all, err := packages(ctx, root, modules...)
	if err != nil {
		return err
	}
	// The end-to-end tests take longest, so they begin. Most of a test is waiting: more packages at once than there are
	// processors.
	e2e := slices.DeleteFunc(slices.Clone(all), func(pkg string) bool { return !isE2E(pkg) })
	units := slices.DeleteFunc(all, isE2E)
	r := run{root: root, output: os.Stdout, name: "test", packages: slices.Concat(e2e, units)}
	return r.test(ctx, "-short", "-p=5", "-timeout=20m")
}

// TestAll runs every test of the modules that Changed lists, with those of virtual machines and real agents one package
// at a time. A step that fails does not keep the next one from running.
func TestAll(ctx context.Context, root, since string) error {
	changed, err := Changed(ctx, root, since)
	if err != nil {
		return err
	}
	all, err := packages(ctx, root, changed...)
	if err != nil {
		return err
	}
	light := slices.DeleteFunc(slices.Clone(all), isHeavy)
	heavy := slices.DeleteFunc(all, func(pkg string) bool { return !isHeavy(pkg) })
	lightRun := run{root: root, output: os.Stdout, name: "all", packages: light}
	heavyRun := run{root: root, output: os.Stdout, name: "all-e2e", packages: heavy}
	return errors.Join(lightRun.test(ctx, "-p=4", "-timeout=60m"), heavyRun.test(ctx, "-p=1", "-timeout=60m"))
}

// TestModule compiles a module, named by its folder in the repository, by its own go.mod as a release does. Then it
// runs the module's unit tests as Test does, with the race detector if race says so.
func TestModule(ctx context.Context, root, dir string, race bool) error {
	modules, err := workspaceModules(ctx, root)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(modules, func(m module) bool { return m.dir == filepath.Clean(dir) })
	if i < 0 {
		return fmt.Errorf("go.work has no module in %q", dir)
	}
	m := modules[i]
	env := append(goEnv(ctx, root), "GOWORK=off")
	out, err := output(ctx, env, filepath.Join(root, m.dir), "go", "build", "./...")
	if err != nil {
		return fmt.Errorf("failed to build %s by its own go.mod: %w\n%s", m.dir, err, out)
	}
	all, err := packages(ctx, root, m.dir)
	if err != nil {
		return err
	}
	flags := []string{"-short", "-p=4", "-timeout=20m"}
	if race {
		flags = append(flags, "-race")
	}
	units := slices.DeleteFunc(all, func(pkg string) bool {
		return isE2E(pkg) || race && strings.HasSuffix(pkg, "/"+noRaceDetector)
	})
	r := run{root: root, output: os.Stdout, name: "module", packages: units}
	return r.test(ctx, flags...)
}

// noRaceDetector is the package whose tests fail with the race detector, though it finds no race there: when the plugin
// that started a supervisor is gone, the supervisor's cgroup stays. Why is unknown.
const noRaceDetector = "internal/core/supervisor"

func isE2E(pkg string) bool { return strings.Contains(pkg+"/", "/lab/e2e/") }

// isHeavy is about packages of which two at once are too much for a small machine.
func isHeavy(pkg string) bool { return isE2E(pkg) || strings.Contains(pkg+"/", "/lab/vm/") }

// run is one run of gotestsum.
type run struct {
	root     string   // of the workspace
	name     string   // of the files in resultsDir
	packages []string // import paths
	output   io.Writer
	nested   bool // in a test: what the tests beside it share with this run is not looked at
}

// test runs the tests, by go test with these flags, and tells what failed, what is flaky and what was skipped. A test
// that fails is run again by itself, up to two times, unless more than five fail.
func (r run) test(ctx context.Context, flags ...string) error {
	program, err := gotool.Path(ctx, r.root, "gotestsum")
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(filepath.Join(r.root, resultsDir))
	if err != nil {
		return err
	}
	err = os.MkdirAll(dir, 0o755)
	if err != nil {
		return err
	}
	left, err := newLeftovers()
	if err != nil {
		return err
	}
	left.ownOnly = r.nested
	events := filepath.Join(dir, r.name+".json")
	args := []string{
		"--format=pkgname", "--format-hide-empty-pkg", "--hide-summary=failed,skipped",
		"--rerun-fails=2", "--rerun-fails-max-failures=5",
		"--jsonfile=" + events, "--junitfile=" + filepath.Join(dir, r.name+".xml"),
		"--packages=" + strings.Join(r.packages, " "), "--",
		// a result of before says nothing of the binaries that the tests start; `go tool mage lint` runs go vet; with
		// -trimpath checkouts share what is compiled; and without a debugger's tables linking takes half the time
		"-count=1", "-vet=off", "-trimpath", "-ldflags=-s -w",
	}
	cmd := exec.CommandContext(ctx, program, append(args, flags...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.root, r.output, r.output
	cmd.Env = append(goEnv(ctx, r.root), "TMPDIR="+left.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the tests clean up
	cmd.WaitDelay = time.Minute
	failure := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failure != nil {
		failure = fmt.Errorf("gotestsum: %w", failure)
	}
	failure = errors.Join(failure, left.check(ctx))
	file, err := os.Open(events)
	if err != nil {
		return errors.Join(failure, err)
	}
	defer file.Close()
	return errors.Join(failure, judge(r.output, file, os.Getenv("CI") != ""))
}
