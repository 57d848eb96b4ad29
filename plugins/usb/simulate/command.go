// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// Command is nomad-device-usb simulate.
func Command() plugin.Command {
	return plugin.Command{
		Name: "simulate",
		Help: "plug a simulated stick into a directory, until it is interrupted",
		Run: func(ctx context.Context, args []string) error {
			dir, stick, err := parse(args, os.Stdout)
			if err != nil {
				return err
			}
			return run(ctx, dir, stick, os.Stdout, os.Stderr)
		},
		Undoes: true,
	}
}

// run plugs the stick in, serves it until ctx ends, and unplugs it. Lines of tasks are written
// to out, and remarks to notes.
func run(ctx context.Context, dir string, stick Stick, out, notes io.Writer) error {
	p, err := Plug(dir, stick)
	if err != nil {
		return err
	}
	fmt.Fprintf(notes, "%s is plugged into port %s of %s\n", p.ID, p.Port, p.dir)
	for _, node := range p.Nodes {
		fmt.Fprintf(notes, "  %s\n", filepath.Join(p.dir, node))
	}
	return errors.Join(p.Serve(ctx, out), p.Unplug())
}

const help = `Plugs a simulated USB stick into a directory that stands for / and unplugs it when
it is interrupted. What tasks write to the stick is printed, and answered. The
plugin publishes it with root = "DIR" in its configuration.

  nomad-device-usb simulate DIR [options]

`

func parse(args []string, usage io.Writer) (dir string, s Stick, err error) {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	id := flags.String("id", "10c4:ea60", "vendor and product, in hex")
	flags.StringVar(&s.Serial, "serial", "0001", "serial number; empty is none")
	flags.StringVar(&s.Port, "port", "1-1", "bus and port")
	flags.StringVar(&s.Manufacturer, "manufacturer", "Silicon Labs", "name of the manufacturer")
	flags.StringVar(&s.Product, "product", "CP2102 USB to UART Bridge Controller", "name of the product")
	functions := flags.String("functions", "tty", "what it has: tty, hidraw, or several with commas between")

	dirs, err := plugin.Parse(flags, args, help, usage)
	if err != nil {
		return "", s, err
	}
	if len(dirs) != 1 {
		return "", s, fmt.Errorf("%d directories are given, one is needed: nomad-device-usb simulate DIR [options]",
			len(dirs))
	}
	if s.ID, err = sysfs.ParseID(*id); err != nil {
		return "", s, fmt.Errorf("-id %w", err)
	}
	s.Functions = strings.Split(*functions, ",")
	return dirs[0], s, s.complete()
}
