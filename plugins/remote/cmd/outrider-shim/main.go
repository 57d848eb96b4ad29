// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command outrider-shim is what nomad-driver-remote puts on a host that it reaches by SSH, and
// runs there: it is not run by hand. It is a static program, and the supervisor of tasks, too.
package main

import (
	"os"
	"runtime"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// the launcher role changes the thread it runs on: the main one, whose id is the process's
func init() { runtime.LockOSThread() }

func main() {
	supervisor.Main()
	os.Exit(shim.Main(os.Args[1:]))
}
