// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command exec boots a VM and runs a command in it, with the caller's environment and directory, on the caller's
// terminal if there is one. Without a command it runs a shell:
//
//	go run ./lab/vm/exec [-memory MiB] [-zfs] [COMMAND [ARG...]]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/outrider-dev/outrider/lab/vm"
)

func main() {
	memory := flag.Int("memory", 0, "the VM's memory in MiB")
	zfs := flag.Bool("zfs", false, "load OpenZFS in the VM; the first time it is built")
	console := flag.Bool("console", false, "show the VM's console on stderr")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	o := vm.Options{Memory: *memory, ZFS: *zfs}
	o.Progress = func(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) }
	if *console {
		o.Console = os.Stderr
	}
	err := run(ctx, o, flag.Args())
	var exit *vm.ExitError
	switch {
	case errors.As(err, &exit) && exit.Signal != 0:
		os.Exit(128 + int(exit.Signal)) // as a shell does
	case errors.As(err, &exit):
		os.Exit(exit.Code)
	case err != nil:
		fmt.Fprintln(os.Stderr, "exec:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o vm.Options, args []string) (err error) {
	v, err := vm.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	if len(args) == 0 {
		args = []string{"bash"}
	}
	c := vm.Cmd{Args: args}
	if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		return v.Shell(ctx, c)
	}
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	return v.Run(ctx, c)
}
