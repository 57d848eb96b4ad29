// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package process runs uv and interpreters for the driver: as a user without other rights, and never longer than this
// process.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Program describes a program to run.
type Program struct {
	As             *syscall.Credential // nil: this process's user
	Args           []string            // Args[0] is its path, absolute
	Env            []string
	Dir            string
	Stdout, Stderr io.Writer // may be the same
}

// Run runs a program to its end. When ctx ends, the program and its children are killed, and the error is that of ctx;
// otherwise it is that of package os/exec. The kernel kills the program with this process. When Run returns, no process
// of the program's session is left.
func (p Program) Run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.Dir, p.Env, p.Stdout, p.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.As, Setsid: true, Pdeathsig: syscall.SIGKILL}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = kill
	cmd.WaitDelay = time.Second // for children in another session that hold the pipe

	// The death signal is that of the thread which starts the program (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("failed to start %s: %w", filepath.Base(p.Args[0]), err)
	}
	err := cmd.Wait()
	_ = kill() // the children in its session
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, exec.ErrWaitDelay):
		return nil
	}
	return err
}

var (
	// ErrLate is the error of a program that did not end in time.
	ErrLate = errors.New("did not answer")
	// ErrTooMuch is the error of a program that printed more than maxOutput.
	ErrTooMuch = errors.New("said too much")
)

// maxOutput is more than any answer has, in bytes.
const maxOutput = 64 << 10

// Ask runs a program in the directory / to its end, for limit at most, and returns its output, also with an error. The
// error is that of ctx, wraps ErrLate or ErrTooMuch, or is that of package os/exec.
func Ask(
	ctx context.Context, limit time.Duration, as *syscall.Credential, env []string, argv ...string,
) (stdout, stderr string, err error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, complaints := &bounded{full: cancel}, &bounded{full: cancel}
	err = Program{As: as, Args: argv, Env: env, Dir: "/", Stdout: out, Stderr: complaints}.Run(limited)
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
