// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command usb-stick plugs a simulated USB stick into a directory that replaces /, and unplugs it when the command is
// interrupted. It prints and answers the lines that tasks write to the stick. The usb plugin publishes the stick with
// root = "DIR" in its configuration.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/testsupport/usbsim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var s usbsim.Stick
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "Simulates a plugged-in USB stick in a directory, until interrupted.\n\n"+
			"  usb-stick [options] DIR\n\n")
		flag.PrintDefaults()
	}
	flag.StringVar(&s.ID, "id", "10c4:ea60", "vendor and product IDs, in hex")
	flag.StringVar(&s.Serial, "serial", "0001", "serial number; empty for none")
	flag.StringVar(&s.Port, "port", "1-1", "bus and port")
	flag.StringVar(&s.Manufacturer, "manufacturer", "Silicon Labs", "name of the manufacturer")
	flag.StringVar(&s.Product, "product", "CP2102 USB to UART Bridge Controller", "name of the product")
	functions := flag.String("functions", "tty", "comma-separated list of functions: tty, hidraw")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	s.Functions = strings.Split(*functions, ",")
	err := run(ctx, flag.Arg(0), s)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run plugs the stick in, serves it until ctx ends, and unplugs it.
func run(ctx context.Context, dir string, stick usbsim.Stick) error {
	p, err := usbsim.Plug(dir, stick)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s is plugged into port %s of %s\n", p.ID, p.Port, dir)
	for _, node := range p.Nodes {
		fmt.Fprintf(os.Stderr, "  %s\n", filepath.Join(dir, node))
	}
	return errors.Join(p.Serve(ctx, os.Stdout), p.Unplug())
}
