// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command counter is a task that prints numbered lines. The end-to-end tests use the numbers to find missing and
// doubled lines.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	every := flag.Duration("every", 5*time.Millisecond, "how often it prints a line")
	burst := flag.Int("burst", 1, "how many lines it prints at a time")
	lines := flag.Int("lines", 0, "end after this many lines; 0: never")
	until := flag.String("until", "", "end when this file exists")
	then := flag.String("then", "exit:0", "how to end: exit:CODE, signal:NUMBER or oom")
	pad := flag.Int("pad", 0, "how many characters are appended to a line")
	flag.Parse()
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
	for { // select {} would be a deadlock: Go would exit with code 2, maybe before the signal arrives
		time.Sleep(time.Hour)
	}
}
