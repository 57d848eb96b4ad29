// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command vmctl runs in a VM of package vm, for the host. It controls a Nomad agent and USB sticks there:
//
//	vmctl agent run|start|stop|close DIR
//	vmctl plug NAME PORT ID
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
	switch {
	case len(args) == 3 && args[0] == "agent":
		return runAgent(args[1], args[2])
	case len(args) == 4 && args[0] == "plug":
		return plug(args[1], args[2], args[3])
	case len(args) == 2 && args[0] == "listen":
		return listen(args[1])
	}
	return errors.New("usage: vmctl agent run|start|stop|close DIR, or vmctl plug NAME PORT ID")
}
