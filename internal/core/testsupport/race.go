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

// BeginRoles is the first call of a TestMain whose binary also runs in other roles, such as the supervisor. If the race
// detector has no options (GORACE), BeginRoles executes the binary again with options. Without them, each process waits
// for a second before it exits, and the race report of a role is lost together with the role's output.
func BeginRoles() {
	if os.Getenv("GORACE") != "" {
		return
	}
	env := append(os.Environ(), "GORACE=atexit_sleep_ms=0 log_path="+reports())
	err := unix.Exec("/proc/self/exe", os.Args, env)
	panic(err)
}

// EndRoles prints the race reports of all the binary's processes, and returns code, or 1 if only races were found.
func EndRoles(code int) int {
	found, _ := filepath.Glob(reports() + ".*")
	for _, file := range found {
		text, _ := os.ReadFile(file)
		fmt.Fprintf(os.Stderr, "%s\n", text)
		code = max(code, 1)
	}
	return code
}

// reports is the prefix of the paths of race reports: the detector appends a dot and the process ID.
func reports() string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return self + ".race"
}
