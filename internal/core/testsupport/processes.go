// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package testsupport

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Processes returns the sorted pids of processes whose arguments satisfy accept. Zombies have no arguments.
func Processes(accept func(args []string) bool) []int {
	return ProcessesWith("cmdline", func(content string) bool {
		return content != "" && accept(strings.Split(strings.TrimSuffix(content, "\x00"), "\x00"))
	})
}

// ProcessesWith returns the sorted pids of processes whose file of this name in /proc/<pid> satisfies accept. The files
// cmdline and environ of zombies are empty.
func ProcessesWith(file string, accept func(content string) bool) (pids []int) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		content, err := os.ReadFile("/proc/" + name + "/" + file)
		if err == nil && accept(string(content)) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// BlockUntilKilled blocks a helper process until a test kills it. With `select {}`, Go would end a program without cgo
// when all goroutines wait ("all goroutines are asleep").
func BlockUntilKilled() {
	for {
		_ = unix.Pause() // returns at each signal that Go's runtime sends to the thread
	}
}

// Mark returns a unique number of seconds for a `sleep` command. Sleepers finds the process by this argument.
func Mark() string { return fmt.Sprintf("9%d.%d", os.Getpid(), time.Now().UnixNano()) }

// WaitSleepers waits until exactly count processes `sleep <mark>` run.
func WaitSleepers(t testing.TB, mark string, count int) {
	t.Helper()
	Eventually(t, fmt.Sprintf("%d processes sleep", count), func() bool { return len(Sleepers(mark)) == count })
}

// Sleepers returns the pids of the processes `sleep <mark>`.
func Sleepers(mark string) []int {
	return Processes(func(args []string) bool { return slices.Equal(args, []string{"sleep", mark}) })
}
