// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package testsupport

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Processes returns the pids of the processes whose arguments are accepted, sorted. A zombie has no arguments.
func Processes(accept func(args []string) bool) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		b, _ := os.ReadFile(file)
		if len(b) > 0 && accept(strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// BlockUntilKilled is what a process does that a test kills. With `select {}`, a program without cgo whose goroutines all
// wait is ended by Go ("all goroutines are asleep").
func BlockUntilKilled() {
	for {
		_ = unix.Pause() // it returns at each of the signals by which Go interrupts a thread
	}
}

// Mark returns a number of seconds that no other test sleeps: the argument of a `sleep` to find with Sleepers.
func Mark() string { return fmt.Sprintf("9%d.%d", os.Getpid(), time.Now().UnixNano()) }

// WaitSleepers waits until exactly so many processes `sleep <mark>` run.
func WaitSleepers(t testing.TB, mark string, count int) {
	t.Helper()
	Eventually(t, fmt.Sprintf("%d processes sleep", count), func() bool { return len(Sleepers(mark)) == count })
}

// Sleepers returns the pids of the processes `sleep <mark>`.
func Sleepers(mark string) []int {
	return Processes(func(args []string) bool { return slices.Equal(args, []string{"sleep", mark}) })
}
