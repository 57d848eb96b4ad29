// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/gotestsum/testjson"
)

// New starts a VM for a test, and closes it with the test.
func New(t testing.TB, o Options) *VM {
	t.Helper()
	if o.Progress == nil {
		o.Progress = t.Logf
	}
	v, err := Start(context.WithoutCancel(t.Context()), o) // otherwise it would end before the test's cleanups
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// Test runs the tests of a package in the VM, and reports each as a subtest of t: as passed, failed or skipped, with
// the output of one that did not pass. The flags are those of the test binary, such as -test.run=X. It is a failure if
// no test ran.
//
// The tests are compiled here, and run in the directory of their package, as by `go test`.
func (v *VM) Test(t *testing.T, pkg string, flags ...string) {
	t.Helper()
	ctx := t.Context()
	out, err := output(ctx, "", "go", "list", "-f", "{{.Dir}}", pkg)
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(out)
	binary := filepath.Join(t.TempDir(), "package.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, pkg).CombinedOutput(); err != nil {
		t.Fatalf("failed to compile the tests of %s: %v\n%s", pkg, err, out)
	}
	results, err := v.runTest(ctx, pkg, binary, dir, flags)
	var exit *ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	report := func(tests []testjson.TestCase, how func(*testing.T, ...any)) {
		for _, one := range tests {
			t.Run(one.Test.Name(), func(t *testing.T) {
				how(t, one.Elapsed, "in the VM", strings.Join(results.OutputLines(one), ""))
			})
		}
	}
	report(results.Passed, (*testing.T).Log)
	report(results.Skipped, (*testing.T).Skip)
	report(results.Failed, (*testing.T).Error)
	own := strings.Join(results.OutputLines(testjson.TestCase{}), "") // of no test
	if len(results.Passed)+len(results.Failed) == 0 {
		t.Errorf("no test of %s ran in the VM: %s", pkg, own)
	} else if err != nil && !t.Failed() {
		t.Errorf("the tests of %s passed, but: %v\n%s", pkg, err, own)
	}
}

// runTest runs a test binary and returns its results. A test that has not ended has failed.
func (v *VM) runTest(ctx context.Context, pkg, binary, dir string, flags []string) (*testjson.Package, error) {
	convert := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", pkg) // -t: with how long they took
	stdin, err := convert.StdinPipe()
	if err != nil {
		return nil, err
	}
	events, err := convert.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := convert.Start(); err != nil {
		return nil, fmt.Errorf("failed to run go tool test2json: %w", err)
	}
	ran := make(chan error, 1)
	go func() {
		args := append([]string{binary, "-test.v=test2json", "-test.paniconexit0"}, flags...)
		err := v.Run(ctx, Cmd{Args: args, Dir: dir, Stdout: stdin, Stderr: stdin})
		ran <- errors.Join(err, stdin.Close())
	}()
	results, err := testjson.ScanTestOutput(testjson.ScanConfig{
		Stdout: events, Stop: func() { _ = convert.Process.Kill() },
	})
	err = errors.Join(err, <-ran, convert.Wait())
	if results == nil || results.Package(pkg) == nil {
		return nil, fmt.Errorf("no results of the tests of %s: %w", pkg, err)
	}
	return results.Package(pkg), err
}

// environment is this process's environment with the mark.
func environment() []string { return append(os.Environ(), insideEnv+"=1") }
