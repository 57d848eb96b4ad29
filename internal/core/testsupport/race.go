// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build race

package testsupport

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// BeginRoles is the first call of a TestMain whose binary also runs in other roles, such as the supervisor. With the
// race detector, it executes the binary again with options of the detector, because a role's environment may lack them.
// Without the options, each process waits for a second before it exits, and the report of a race in a role is lost with
// the role's output.
func BeginRoles() {
	if os.Getenv("GORACE") != "" {
		return
	}
	env := append(os.Environ(), "GORACE=atexit_sleep_ms=0 log_path="+reports())
	err := unix.Exec("/proc/self/exe", os.Args, env)
	panic(err)
}

// EndRoles prints the races in all processes of the binary, and returns the exit code of the tests.
func EndRoles(code int) int {
	found, _ := filepath.Glob(reports() + ".*")
	for _, file := range found {
		text, _ := os.ReadFile(file)
		fmt.Fprintf(os.Stderr, "%s\n", text)
		code = max(code, 1)
	}
	return code
}

// reports is the path of the detector's reports, to which it appends a dot and the process ID.
func reports() string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return self + ".race"
}
