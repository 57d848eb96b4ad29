// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
)

// New starts a VM for a test, and closes it when the test ends.
func New(t testing.TB, o Options) *VM {
	t.Helper()
	if o.Progress == nil {
		o.Progress = t.Logf
	}
	v, err := Start(context.WithoutCancel(t.Context()), o) // otherwise the VM would end before the test's cleanups
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

// Test runs the tests of a package in the VM, and logs their output. The flags are for the test binary, such as
// -test.run=X. The calling test fails if a test fails or none passes.
//
// The tests are compiled on the host, and run in the directory of their package, as by `go test`.
func (v *VM) Test(t *testing.T, pkg string, flags ...string) {
	t.Helper()
	ctx := t.Context()
	dir, err := output(ctx, "go", "list", "-f", "{{.Dir}}", pkg)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "package.test")
	if _, err := output(ctx, "go", "test", "-c", "-o", binary, pkg); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	args := append([]string{binary, "-test.v", "-test.paniconexit0"}, flags...)
	err = v.Run(ctx, Cmd{Args: args, Dir: strings.TrimSpace(dir), Stdout: &out, Stderr: &out})
	t.Logf("%s in the VM:\n%s", pkg, &out)
	if err != nil {
		t.Errorf("the tests of %s failed in the VM: %v", pkg, err)
	} else if !strings.Contains(out.String(), "--- PASS: ") {
		t.Errorf("no test of %s passed in the VM", pkg)
	}
}

// environment returns this process's environment with insideEnv added.
func environment() []string { return append(os.Environ(), insideEnv+"=1") }

// insideEnv is in the environment of every command in a VM.
const insideEnv = "OUTRIDER_VM"

// Inside reports whether this process runs in a VM of this package.
func Inside() bool { return os.Getenv(insideEnv) != "" }

// Main is the TestMain of a package whose tests all need a VM. Outside of a VM it boots one, and runs the test binary
// in it with the same flags.
//
//	func TestMain(m *testing.M) { os.Exit(vm.Main(m, vm.Options{})) }
func Main(m *testing.M, o Options) int {
	flag.Parse()
	if Inside() || testing.Short() { // with -short no VM is needed: testsupport.Long skips every test
		return m.Run()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := runSelf(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func runSelf(ctx context.Context, o Options) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	v, err := Start(ctx, o)
	if err != nil {
		return 0, err
	}
	err = v.Run(ctx, Cmd{Args: append([]string{self}, os.Args[1:]...), Stdout: os.Stdout, Stderr: os.Stderr})
	var exit *ssh.ExitError
	switch {
	case errors.As(err, &exit) && exit.Signal() == "":
		return exit.ExitStatus(), v.Close()
	case err != nil:
		return 0, errors.Join(err, v.Close())
	}
	return 0, v.Close()
}
