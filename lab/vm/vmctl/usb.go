// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/outrider-dev/outrider/lab/vm/gadget"
)

// ports is how many sticks can be plugged at once.
const ports = 8

// runUSB plugs or unplugs a serial stick. While it is plugged, a process in the background plays the stick: it answers
// each line with "stick: " and the line, and writes what it got to the file that plug names.
func runUSB(verb string, args []string) error {
	name := "stick"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("usb "+verb, flag.ContinueOnError)
	port := flags.Int("port", 0, "which `port` to plug it into, 0 to 7")
	serial := flags.String("serial", "0001", "its serial `number`; empty for none")
	id := flags.String("id", "1d6b:0104",
		"its vendor and product `id`, in hex; a known one gets the driver that the kernel has for it")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil // it was shown
	} else if err != nil {
		return err
	}
	switch verb {
	case "plug":
		return plug(name, *port, *serial, *id)
	case "unplug":
		g, err := gadget.Open(name)
		if err != nil {
			return err
		}
		return g.Close()
	case "answer":
		g, err := gadget.Open(name)
		if err != nil {
			return err
		}
		return answer(g)
	}
	return fmt.Errorf("usb %s: want plug or unplug", verb)
}

func plug(name string, port int, serial, id string) (err error) {
	var vendor, product uint16
	if n, err := fmt.Sscanf(id, "%04x:%04x", &vendor, &product); n != 2 {
		return fmt.Errorf("the id %q: want one like 1d6b:0104: %w", id, err)
	}
	if err := gadget.Load(ports); err != nil {
		return err
	}
	g, err := gadget.New(name, gadget.Device{
		Vendor: vendor, Product: product, Serial: serial, Manufacturer: "Outrider", Name: "Serial stick",
		Functions: []gadget.Function{gadget.ACM()},
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	if err := g.Plug(port); err != nil {
		return err
	}
	out, err := os.Create("/run/usb-" + name)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command("/proc/self/exe", "usb", "answer", name)
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	fmt.Printf("%s is plugged into port %d as %s; what it gets is in %s\n", name, port, id, out.Name())
	return nil
}

// answer plays the stick until it is unplugged, when the kernel hangs up.
func answer(g *gadget.Gadget) error {
	f, err := os.OpenFile(g.Far()[0], os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := term.MakeRaw(int(f.Fd())); err != nil {
		return err
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		fmt.Println(line)
		if _, err := fmt.Fprintf(f, "stick: %s\n", line); err != nil {
			return err
		}
	}
	return nil // hung up
}
