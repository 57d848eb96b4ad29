// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command vmctl runs in a VM of package vm, for the host. It controls a Nomad agent and USB sticks there:
//
//	vmctl agent run|start|stop|close DIR
//	vmctl usb plug|unplug [NAME] [-port N] [-serial S] [-id 1d6b:0104]
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vmctl:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: vmctl agent run|start|stop|close DIR, or vmctl usb plug|unplug [NAME] [FLAG...]")
	}
	switch args[0] {
	case "agent":
		return runAgent(args[1], args[2:])
	case "usb":
		return runUSB(args[1], args[2:])
	}
	return fmt.Errorf("unknown command %q: want agent or usb", args[0])
}
