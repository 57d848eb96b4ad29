// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Interrupted is the error of a command that ^C has ended. It names the things that still run, and the next command.
type Interrupted string

func (i Interrupted) Error() string { return "interrupted; " + string(i) }

// ExitStatus makes mage exit with status 130, as shells do after SIGINT.
func (Interrupted) ExitStatus() int { return 128 + int(syscall.SIGINT) }

// Command calls do for a user at a terminal. The first ^C cancels ctx, so do can clean up; the second one ends the
// process. Errors are wrapped for the terminal.
func (l *Lab) Command(ctx context.Context, do func(context.Context) error) error {
	ctx, stop := UntilInterrupt(ctx)
	defer stop()
	err := do(ctx)
	var interrupted Interrupted
	switch {
	case err == nil, errors.As(err, &interrupted):
	case cancelled(ctx):
		err = Interrupted("to see what still runs: " + mage + " lab:status")
	default:
		const prefix = "Error: " // mage prints this before an error
		return errors.New(term.Wrap(prefix+err.Error(), term.Columns(l.errOut), "  ")[len(prefix):])
	}
	return err
}

// UntilInterrupt returns a context that the first ^C (or SIGTERM) cancels; the second one ends the process. It replaces
// mage's handler, which would end the process 5 s after the first ^C, even during the clean-up.
func UntilInterrupt(ctx context.Context) (context.Context, context.CancelFunc) {
	time.Sleep(20 * time.Millisecond) // until mage has installed its handler, just after its call of the target
	signal.Reset(os.Interrupt)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// cancelled reports whether ^C has cancelled ctx. It waits a moment: ^C also ends child processes, whose errors may
// arrive before this process handles its own signal.
func cancelled(ctx context.Context) bool {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
	return ctx.Err() != nil
}

// step is like the printer's Step, but reports a step that ^C has ended as interrupted instead of failed.
func (l *Lab) step(ctx context.Context, format string, args ...any) func(err error, outcome string, args ...any) {
	end := l.steps.Step(format, args...)
	return func(err error, outcome string, args ...any) {
		if err != nil && cancelled(ctx) {
			err = ctx.Err()
		}
		end(err, outcome, args...)
	}
}
