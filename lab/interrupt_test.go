// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

func TestCommand_WrapsErrors(t *testing.T) {
	l, _ := quiet(t)
	cause := errors.New(strings.Repeat("many words ", 30) + "end")
	err := l.Command(t.Context(), func(context.Context) error { return cause })
	must.Error(t, err)
	test.Eq(t, cause.Error(), strings.Join(strings.Fields(err.Error()), " "))
	for line := range strings.Lines("Error: " + err.Error()) { // as mage prints it
		n := len(strings.TrimRight(line, "\n"))
		test.False(t, n > term.Width, test.Sprintf("%d columns: %s", n, line))
	}
}

func TestCommand_InterruptReportsWhatKeepsRunning(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(ctx context.Context) error
		want string
	}{
		"nothing runs": {func(ctx context.Context) error { <-ctx.Done(); return errors.New("half-finished") },
			"go tool mage lab:status"},
		"a job": {func(ctx context.Context) error { <-ctx.Done(); return Interrupted("job hello keeps running") },
			"job hello keeps running"},
		// ^C has ended a child process, just before this process handles its own signal
		"a program": {func(context.Context) error { return errors.New("signal: interrupt") },
			"go tool mage lab:status"},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := quiet(t)
			err := l.Command(t.Context(), func(ctx context.Context) error {
				time.AfterFunc(10*time.Millisecond, func() { syscall.Kill(syscall.Getpid(), syscall.SIGINT) })
				return tc.do(ctx)
			})
			var interrupted Interrupted
			must.True(t, errors.As(err, &interrupted), must.Sprintf("got %v", err))
			must.StrContains(t, err.Error(), tc.want, must.Sprintf("got %v", err))
			test.StrNotContains(t, err.Error(), "half", test.Sprintf("got %v", err))
		})
	}
}
