// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package gobuild runs go build and reports its progress: with an empty cache it takes minutes.
package gobuild

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Every is the shortest time between two reports of progress.
const Every = 2 * time.Second

// Build is one `go build`.
type Build struct {
	Dir      string
	Env      []string                         // in addition to this process's
	Args     []string                         // after "build"
	Packages int                              // how many it compiles at most, if that is known
	Progress func(format string, args ...any) // is called now and then with the state; may be nil
}

// Run builds. The error has the compiler's messages. When the context ends, the go command gets an interrupt, as by
// ^C, and ends with its compilers.
func (b Build) Run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-v"}, b.Args...)...)
	cmd.Dir = b.Dir
	cmd.Env = append(os.Environ(), b.Env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	stderr, err := cmd.StderrPipe() // -v names each package there as it is compiled
	if err != nil {
		return err
	}
	cmd.Stdout = cmd.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("failed to run the go command: %w", err)
	}
	messages := b.follow(bufio.NewScanner(stderr))
	_, _ = io.Copy(io.Discard, stderr) // the scanner stops at a line that is too long, and the go command would block
	if err := cmd.Wait(); err != nil {
		return errors.Join(err, errors.New(strings.Join(messages, "\n")))
	}
	return nil
}

// follow reads the go command's output to its end, reports the activity, and returns the messages.
func (b Build) follow(lines *bufio.Scanner) (messages []string) {
	compiled := 0
	var last time.Time
	for lines.Scan() {
		line := lines.Text()
		var activity string
		switch {
		case strings.HasPrefix(line, "go: downloading "):
			activity = strings.TrimPrefix(line, "go: ")
		case strings.ContainsAny(line, " #\t"):
			messages = append(messages, line)
			continue
		default:
			compiled++
			activity = fmt.Sprintf("packages compiled: %d", compiled)
			if b.Packages > 0 {
				activity += fmt.Sprintf(" of at most %d", b.Packages)
			}
		}
		if b.Progress != nil && time.Since(last) >= Every {
			last = time.Now()
			b.Progress("%s", activity)
		}
	}
	return messages
}
