package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

var (
	// ErrLate is of a program that takes longer than it may.
	ErrLate = errors.New("did not answer")
	// ErrTooMuch is of a program that says more than any answer.
	ErrTooMuch = errors.New("said too much")
)

// maxOutput is more than any program says of itself, in bytes.
const maxOutput = 64 << 10

// Ask runs a program to its end, for limit at most, as a user (nil: this process's own), in / and with env and a TMPDIR
// alone, in a sandbox in which it can write to that TMPDIR only, and has no network where this process is root. What it
// says is returned with an error, too. The process and what it started are gone when Ask returns (Sandbox.Run
// tells where that is not so).
//
// The error is that of ctx, wraps ErrLate or ErrTooMuch, or is that of package os/exec. It is none that
// something which the program left behind had its output open.
func Ask(
	ctx context.Context, limit time.Duration, as *syscall.Credential, env []string, argv ...string,
) (stdout, stderr string, err error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, complaints := &bounded{full: cancel}, &bounded{full: cancel}
	s := New(as)
	defer s.Close()
	err = s.Run(limited, Program{
		Args: argv, Env: append(slices.Clone(env), "TMPDIR=/dev/shm"), Dir: "/", Stdout: out, Stderr: complaints,
	})
	switch {
	case err == nil:
	case ctx.Err() != nil:
		err = ctx.Err()
	case out.over || complaints.over:
		err = ErrTooMuch
	case limited.Err() != nil:
		err = fmt.Errorf("%w within %s", ErrLate, limit)
	}
	return out.text.String(), complaints.text.String(), err
}

// bounded keeps what is written until it is too much. (The buffer is not embedded: its ReadFrom
// would take everything.)
type bounded struct {
	text bytes.Buffer
	full func() // called when it is too much
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.text.Len()+len(p) > maxOutput {
		b.over = true
		b.full()
		return 0, ErrTooMuch
	}
	return b.text.Write(p)
}
