// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command outrider-supervisor is the small program that starts tasks, collects their output and
// records how they ended. It is embedded in plugins (go tool mage build), which start it with the
// first task; it is not run by hand.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
)

// The launcher role applies its settings to one thread. Make this the main thread, whose id is the pid.
func init() { runtime.LockOSThread() }

func main() {
	supervisor.Main()
	fmt.Fprintln(os.Stderr, "outrider-supervisor starts the tasks of Outrider's Nomad plugins. "+
		"It is embedded in the plugin, which starts it; it is not run by hand.")
	os.Exit(2)
}
