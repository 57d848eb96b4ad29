// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command conformance runs the cases of package conformance against the binary of a driver plugin, and prints the
// result of each case. Usually it is called by mage: `go tool mage conformance bin/nomad-driver-exec-lite`.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"

	"github.com/outrider-dev/outrider/internal/core/conformance"
)

func main() {
	var d conformance.Driver
	flag.StringVar(&d.Task, "task", "", "a task's config block (HCL or JSON), in which SCRIPT stands for a shell script")
	flag.StringVar(&d.Config, "config", "", "the plugin's config block (HCL or JSON)")
	only := flag.String("only", "", "run only the cases that match this regular expression")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: conformance [options] PLUGIN")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	d.Exe, d.Only = flag.Arg(0), regexp.MustCompile(*only)
	count := map[conformance.Outcome]int{}
	err := d.Run(func(r conformance.Result) {
		count[r.Outcome]++
		fmt.Printf("%-8s %-68s %s\n", r.Outcome, r.Case, r.Why)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
	fmt.Printf("%d passed, %d failed, %d skipped, %d n/a\n", count[conformance.Passed],
		count[conformance.Failed], count[conformance.Skipped], count[conformance.NotApplicable])
	if count[conformance.Failed] > 0 {
		os.Exit(1)
	}
}
