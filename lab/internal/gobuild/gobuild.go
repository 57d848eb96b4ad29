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
	"sync"
	"sync/atomic"
	"time"
)

// Every is how often a build reports its progress.
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
	var doing atomic.Value
	doing.Store("looking at its packages")
	stop := b.report(&doing)
	messages := b.follow(bufio.NewScanner(stderr), func(what string) { doing.Store(what) })
	_, _ = io.Copy(io.Discard, stderr) // the scanner stops at a line that is too long, and the go command would block
	err = cmd.Wait()
	stop()
	if err != nil {
		return errors.Join(err, errors.New(strings.Join(messages, "\n")))
	}
	return nil
}

// report calls Progress at intervals with the current activity. stop ends that and waits for it.
func (b Build) report(doing *atomic.Value) (stop func()) {
	if b.Progress == nil {
		return func() {}
	}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(Every)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				b.Progress("%s", doing.Load())
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

// follow reads the go command's output to its end, calls tell with each activity, and returns the messages.
func (b Build) follow(lines *bufio.Scanner, tell func(string)) (messages []string) {
	compiled := 0
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "go: downloading "):
			tell(strings.TrimPrefix(line, "go: "))
		case strings.ContainsAny(line, " #\t"):
			messages = append(messages, line)
		default:
			compiled++
			if b.Packages > 0 {
				tell(fmt.Sprintf("packages compiled: %d of at most %d", compiled, b.Packages))
			} else {
				tell(fmt.Sprintf("packages compiled: %d", compiled))
			}
		}
	}
	return messages
}
