// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package process

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestAsk_ReturnsOutputAndError(t *testing.T) {
	t.Setenv("SECRET", "the agent's")
	mark := testsupport.Mark()
	for name, c := range map[string]struct {
		script, stdout, stderr, err string
		is                          error
	}{
		"it answers": {script: "echo $PWD $A $SECRET; echo b >&2", stdout: "/ a\n", stderr: "b\n"},
		"it fails": {
			script: "echo a; echo b >&2; exit 3",
			stdout: "a\n", stderr: "b\n", err: "exit status 3",
		},
		"it says too much": {
			script: "while :; do echo a line that is repeated; done",
			err:    "said too much", is: ErrTooMuch,
		},
		"it complains too much": {
			script: "while :; do echo a line that is repeated; done >&2",
			err:    "said too much", is: ErrTooMuch,
		},
		"what it leaves has its output": {script: "sleep " + mark + " & echo a", stdout: "a\n"},
		"it was killed": { // by the kernel, as there is no room for the program
			script: "ulimit -c 0; ulimit -v 1; exec true",
			err:    "signal: segmentation fault",
		},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := Ask(
				t.Context(),
				time.Minute,
				nil,
				[]string{"A=a", "PATH=/usr/bin:/bin"},
				"/bin/sh",
				"-c",
				c.script,
			)
			if err == nil && c.err != "" || err != nil && err.Error() != c.err || !errors.Is(err, c.is) && c.is != nil {
				t.Errorf("the error is %v", err)
			}
			testsupport.WaitSleepers(t, mark, 0)
			if c.is == nil && (stdout != c.stdout || stderr != c.stderr) {
				t.Errorf("it said %q and %q", stdout, stderr)
			}
		})
	}
	_, _, err := Ask(t.Context(), time.Minute, nil, nil, "/nonexistent/program")
	test.ErrorIs(t, err, os.ErrNotExist, test.Sprint("a program that is not there"))
}

func TestAsk_KillsAHungProgramAndItsChildren(t *testing.T) {
	for name, want := range map[string]error{"its time is over": ErrLate, "nobody waits": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			mark := testsupport.Mark()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			limit := time.Minute
			if want == ErrLate {
				limit = 100 * time.Millisecond
			}
			for started := false; !started; limit *= 2 { // until it comes to have a child
				must.False(t, limit > 2*time.Minute, must.Sprint("it has started nothing"))
				over, watched := make(chan struct{}), make(chan bool)
				go func() {
					for len(testsupport.Sleepers(mark)) == 0 {
						select {
						case <-over:
							watched <- false
							return
						case <-time.After(time.Millisecond):
						}
					}
					if want == context.Canceled {
						cancel()
					}
					watched <- true
				}()
				_, _, err := Ask(ctx, limit, nil, []string{"PATH=/usr/bin:/bin"}, "/bin/sh", "-c", "sleep "+mark+" & wait")
				close(over)
				started = <-watched
				must.ErrorIs(t, err, want, must.Sprint("the error"))
			}
			testsupport.WaitSleepers(t, mark, 0)
		})
	}
}
