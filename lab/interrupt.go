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

// Interrupted is the error of a command that ^C ended. It names what still runs, and how to continue.
type Interrupted string

func (i Interrupted) Error() string { return "interrupted; " + string(i) }

// ExitStatus returns the exit status for mage: 130, as a shell reports SIGINT.
func (Interrupted) ExitStatus() int { return 128 + int(syscall.SIGINT) }

// Command runs a command for a user at a terminal. The first ^C ends it cleanly, the second one immediately. Errors are
// wrapped for the terminal.
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
		const prefix = "Error: " // mage prints this prefix
		return errors.New(term.Wrap(prefix+err.Error(), term.Columns(l.errOut), "  ")[len(prefix):])
	}
	return err
}

// UntilInterrupt returns a context that the first ^C (or SIGTERM) ends; a second one ends the process. It takes the
// signal over from mage, which would end the process 5 s after the first one, during the clean-up.
func UntilInterrupt(ctx context.Context) (context.Context, context.CancelFunc) {
	time.Sleep(20 * time.Millisecond) // mage installs its handler just after it calls the target
	signal.Reset(os.Interrupt)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// cancelled reports whether ^C has ended the context. It waits a moment: a program that got the same signal may end
// before this process handles the signal.
func cancelled(ctx context.Context) bool {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
	return ctx.Err() != nil
}

// step is like the printer's Step, but a step whose context has ended is reported as interrupted, not as failed.
func (l *Lab) step(ctx context.Context, format string, args ...any) func(err error, outcome string, args ...any) {
	end := l.steps.Step(format, args...)
	return func(err error, outcome string, args ...any) {
		if err != nil && cancelled(ctx) {
			err = ctx.Err()
		}
		end(err, outcome, args...)
	}
}
