// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command counter is a task for the end-to-end tests: it prints numbered lines,
// so that a missing one or one too many shows, until it is told to end.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	every := flag.Duration("every", 5*time.Millisecond, "how often it prints a line")
	burst := flag.Int("burst", 1, "how many lines it prints at a time")
	lines := flag.Int("lines", 0, "end after so many; 0 is no end")
	until := flag.String("until", "", "end when this file exists")
	then := flag.String("then", "exit:0", "how to end: exit:CODE, signal:NUMBER or oom")
	pad := flag.Int("pad", 0, "how many more characters a line has")
	bare := flag.Bool("bare", false, "give the pages of its arguments back to the kernel")
	flag.Parse()
	if *bare {
		// the flags point there, too
		*until, *then = strings.Clone(*until), strings.Clone(*then)
		if err := unmapArguments(); err != nil {
			fmt.Fprintln(os.Stderr, "failed to lose its arguments:", err)
			os.Exit(98)
		}
	}

	out, padding := bufio.NewWriter(os.Stdout), strings.Repeat("x", *pad)
	n := 0
	for *lines == 0 || n < *lines {
		for range *burst {
			fmt.Fprintln(out, "line", n, padding)
			n++
		}
		if err := out.Flush(); err != nil {
			fmt.Fprintln(os.Stderr, "failed to print:", err)
			os.Exit(99)
		}
		if *until != "" {
			if _, err := os.Stat(*until); err == nil {
				break
			}
		}
		time.Sleep(*every)
	}
	fmt.Println("last", n)
	fmt.Fprintln(os.Stderr, "bye", n)
	end(*then)
}

// unmapArguments leaves /proc/<pid>/cmdline empty, which needs no right: the stack's
// pages from the arguments on are unmapped.
func unmapArguments() error {
	// once more with so many variables that the stack in use has no page in common with the arguments
	const padded = "COUNTER_PADDED"
	if os.Getenv(padded) == "" {
		env := append(slices.Repeat([]string{"A="}, 1500), os.Environ()...)
		return syscall.Exec("/proc/self/exe", os.Args, append(env, padded+"=1"))
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	start, _ := strconv.ParseUint(f[48-3], 10, 64) // proc_pid_stat(5): arg_start
	start -= start % uint64(os.Getpagesize())
	for line := range strings.Lines(string(maps)) {
		if bounds, _, _ := strings.Cut(line, " "); strings.HasSuffix(line, "[stack]\n") {
			_, top, _ := strings.Cut(bounds, "-")
			end, _ := strconv.ParseUint(top, 16, 64)
			_, _, _ = syscall.Syscall(syscall.SYS_MUNMAP, uintptr(start), uintptr(end-start), 0)
		}
	}
	if left, err := os.ReadFile("/proc/self/cmdline"); err != nil || len(left) > 0 {
		return fmt.Errorf("%d bytes are left, %w", len(left), err)
	}
	return nil
}

func end(how string) {
	kind, number, _ := strings.Cut(how, ":")
	n, _ := strconv.Atoi(number)
	switch kind {
	case "exit":
		os.Exit(n)
	case "signal":
		syscall.Kill(os.Getpid(), syscall.Signal(n))
	case "oom":
		for hog := [][]byte(nil); ; {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			hog = append(hog, b)
		}
	}
	for { // a select of nothing would be a deadlock for Go, which ends by code 2, maybe before the signal comes
		time.Sleep(time.Hour)
	}
}
