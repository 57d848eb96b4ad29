package lab

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

func TestCommand_WrapsErrors(t *testing.T) {
	l, _ := quiet(t)
	cause := errors.New(strings.Repeat("many words ", 30) + "end")
	err := l.Command(t.Context(), func(context.Context) error { return cause })
	if !errors.Is(err, cause) || strings.Join(strings.Fields(err.Error()), " ") != cause.Error() {
		t.Errorf("got %v", err)
	}
	for line := range strings.Lines("Error: " + err.Error()) { // as mage prints it
		if n := len(strings.TrimRight(line, "\n")); n > term.Width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestCommand_ReportsTheLabOnInterrupt(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(ctx context.Context) error
		want string
	}{
		"nothing runs": {func(ctx context.Context) error { <-ctx.Done(); return errors.New("half-finished") },
			"nothing is left running"},
		"a job": {func(ctx context.Context) error { <-ctx.Done(); return goesOn("hello") },
			"job hello goes on. Stop it with: "},
		// ended by ^C itself, a moment before we hear of that
		"a program": {func(context.Context) error { return errors.New("signal: interrupt") }, "nothing is left running"},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := quiet(t)
			err := l.Command(t.Context(), func(ctx context.Context) error {
				time.AfterFunc(10*time.Millisecond, func() { syscall.Kill(syscall.Getpid(), syscall.SIGINT) })
				return tc.do(ctx)
			})
			var interrupted Interrupted
			if !errors.As(err, &interrupted) || !strings.Contains(err.Error(), tc.want) ||
				strings.Contains(err.Error(), "half") {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
