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
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case "version", "-v", "-version", "--version":
			os.Exit(version())
		case "help", "-h", "-help", "--help":
			fmt.Print(help)
			return
		}
	}
	supervisor.Main()
	fmt.Fprint(os.Stderr, help)
	os.Exit(2)
}

const help = `outrider-supervisor starts the tasks of a Nomad plugin of Outrider, collects their
output and remembers how they ended. The plugin has it inside, and starts it; it is not
run by hand.

  version  print which build it is
  help     print this
`

func version() int {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		fmt.Fprintln(os.Stderr, "outrider-supervisor:", err)
		return 1
	}
	fmt.Printf("outrider-supervisor, build %s\nby %s for %s/%s; its plugin tells version and commit\n",
		supervisor.BuildOf(program), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return 0
}
