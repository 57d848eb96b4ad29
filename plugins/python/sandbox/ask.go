// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

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
	// ErrLate is the error of a program that did not end in time.
	ErrLate = errors.New("did not answer")
	// ErrTooMuch is the error of a program that printed more than maxOutput.
	ErrTooMuch = errors.New("said too much")
)

// maxOutput is more than any answer has, in bytes.
const maxOutput = 64 << 10

// Ask runs a program in a sandbox to its end, for limit at most, as a user (nil: this process's own), in the directory
// / and with the environment env and a TMPDIR. It can write only to that TMPDIR, and has no network if this process is
// root. Ask returns the output also with an error. The program and its children have ended then, as after Sandbox.Run.
//
// The error is that of ctx, wraps ErrLate or ErrTooMuch, or is that of package os/exec.
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

// bounded is a buffer with a limit. (bytes.Buffer is not embedded: its ReadFrom has no limit.)
type bounded struct {
	text bytes.Buffer
	full func() // called when the limit is reached
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
