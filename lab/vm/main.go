// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// insideEnv is in the environment of every command in a VM.
const insideEnv = "OUTRIDER_VM"

// Inside reports whether this process runs in a VM of this package.
func Inside() bool { return os.Getenv(insideEnv) != "" }

// Main is the TestMain of a package whose tests all need a VM. Outside of a VM it boots one, calls each of prepare
// with it, and runs the test binary in it with the same flags.
//
//	func TestMain(m *testing.M) { os.Exit(vm.Main(m, vm.Options{})) }
func Main(m *testing.M, o Options, prepare ...func(*VM)) int {
	flag.Parse()
	if Inside() || testing.Short() { // all tests are testsupport.Long's, which skips them
		return m.Run()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := runSelf(ctx, o, prepare)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func runSelf(ctx context.Context, o Options, prepare []func(*VM)) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	v, err := Start(ctx, o)
	if err != nil {
		return 0, err
	}
	for _, f := range prepare {
		f(v)
	}
	err = v.Run(ctx, Cmd{Args: append([]string{self}, os.Args[1:]...), Stdout: os.Stdout, Stderr: os.Stderr})
	var exit *ExitError
	switch {
	case errors.As(err, &exit) && exit.Signal == 0:
		return exit.Code, v.Close()
	case err != nil:
		return 0, errors.Join(err, v.Close())
	}
	return 0, v.Close()
}
