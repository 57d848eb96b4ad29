// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command outrider-supervisor is the small program that starts tasks, collects
// their output and remembers how they ended. Plugins carry it inside (go tool mage build)
// and start it when the first task comes; it is not run by hand.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
)

// the launcher role changes the thread it runs on: the main one, whose id is the process's
func init() { runtime.LockOSThread() }

func main() {
	supervisor.Main()
	fmt.Fprintln(os.Stderr, "outrider-supervisor starts the tasks of a Nomad plugin of Outrider. "+
		"The plugin has it inside, and starts it; it is not run by hand.")
	os.Exit(2)
}
