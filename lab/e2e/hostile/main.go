// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command hostile is a task for the end-to-end tests that tries to become root: it
// puts itself in the place of the loader of every program, in a mount namespace of its
// own. Whoever enters that as root, and then executes a set-user-ID program, executes
// this one instead, which leaves evidence of it.
package main

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// evidence is a file that everybody may write to, set by the build.
var evidence string

func main() {
	if len(os.Args) == 3 && os.Args[1] == "attack" {
		if err := attack(os.Args[2]); err != nil {
			fmt.Println("failed to attack:", err)
			os.Exit(1)
		}
	}
	ids, _ := os.ReadFile("/proc/self/uid_map")
	report := fmt.Sprintf("hostile code ran as user %d in a user namespace of ids %q, instead of %q\n", os.Geteuid(), ids,
		os.Args)
	fmt.Print(report)
	if f, err := os.OpenFile(evidence, os.O_WRONLY|os.O_APPEND, 0); err == nil {
		_, _ = f.WriteString(report)
		f.Close()
	}
}

func attack(loader string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := syscall.Mount(self, loader, "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	fmt.Println("attached")
	for {
		time.Sleep(time.Hour)
	}
}
