// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package session runs commands in tasks, with pipes or a terminal as their standard streams.
package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/creack/pty"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// errLost means that the supervisor was replaced while a command ran in a task. Commands end with
// the connection to the supervisor; tasks keep running.
var errLost = errors.New("command was killed because the supervisor was restarted")

// Run runs a command in a task, and returns how it ended once all its output is written. When ctx ends, Run kills the
// command and returns, even if the command's start hangs. The error is supervisor.ErrEnded if the task has ended.
// Streams of o may be nil. If Stdout and Stderr are the same stream, only one goroutine writes to it. Run closes each
// stream when nothing is left to copy.
func Run(ctx context.Context, client *supervisor.Client, id string, o *drivers.ExecOptions) (*task.Exit, error) {
	s, err := openStreams(o)
	if err != nil {
		return nil, fmt.Errorf("failed to open the command's streams: %w", err)
	}
	defer s.close()
	name := "exec-" + rand.Text()
	spec := &supervisor.ExecSpec{Session: name, Path: o.Command[0], Args: o.Command[1:], TTY: o.Tty}
	theirs := s.theirs
	s.theirs = [3]*os.File{}
	ended, err := start(ctx, client, id, spec, theirs)
	if err != nil {
		return nil, err
	}
	read := s.connect(ctx, o)
	var e *task.Exit
	select {
	case exit, ok := <-ended:
		if e = exit; !ok {
			err = errLost
		}
		waitForOutput(ctx, read, s.stdout, s.stderr)
	case <-ctx.Done():
		err = ctx.Err()
		_ = client.Kill(context.WithoutCancel(ctx), name)
	}
	s.close()
	<-read
	return e, err
}

// start starts the command, and closes stdio. If ctx ends first, start returns ctx.Err(), but the call to the
// supervisor continues until that call's own deadline. If the command starts after all, it is killed.
func start(
	ctx context.Context, client *supervisor.Client, id string, spec *supervisor.ExecSpec, stdio [3]*os.File,
) (<-chan *task.Exit, error) {
	type result struct {
		ended <-chan *task.Exit
		err   error
	}
	calls := context.WithoutCancel(ctx)
	started := make(chan result, 1)
	go func() {
		ended, err := client.Exec(calls, id, spec, stdio)
		wire.CloseAll(stdio[:])
		started <- result{ended, err}
	}()
	select {
	case r := <-started:
		return r.ended, r.err
	case <-ctx.Done():
		go func() {
			r := <-started
			if r.err == nil {
				_ = client.Kill(calls, spec.Session)
			}
		}()
		return nil, ctx.Err()
	}
}

// waitForOutput waits until all output of an ended command has been read. A background process of the command may keep
// the pipes open indefinitely, so waitForOutput also returns when the pipes are empty. That takes a while if the
// client's connection or the machine is slow.
func waitForOutput(ctx context.Context, read <-chan struct{}, pipes ...*os.File) {
	for range 600 { // give up after a minute, because a background process may write continuously
		select {
		case <-read:
			return
		case <-ctx.Done(): // the client has disconnected
			return
		case <-time.After(100 * time.Millisecond):
		}
		if !slices.ContainsFunc(pipes, func(p *os.File) bool { return p != nil && !empty(p) }) {
			return
		}
	}
}

func empty(pipe *os.File) bool {
	left := 0
	raw, err := pipe.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { left, err = logs.Queued(int(fd)) })
	}
	return err != nil || left == 0
}

// streams contains both sides of a command's standard streams.
type streams struct {
	theirs                [3]*os.File
	stdin, stdout, stderr *os.File // our sides, nil for the null device; stderr is also nil if stdout includes it
	tty                   bool
}

func openStreams(o *drivers.ExecOptions) (*streams, error) {
	if o.Tty {
		master, slave, err := pty.Open()
		if err != nil {
			return nil, err
		}
		return &streams{theirs: [3]*os.File{slave, slave, slave}, stdin: master, stdout: master, tty: true}, nil
	}
	s := &streams{}
	var err error
	open := func(wanted bool, r, w **os.File, theirs **os.File) {
		switch {
		case err != nil:
		case wanted:
			*r, *w, err = os.Pipe()
		default:
			*theirs, err = os.OpenFile(os.DevNull, os.O_RDWR, 0)
		}
	}
	open(o.Stdin != nil, &s.theirs[0], &s.stdin, &s.theirs[0])
	open(o.Stdout != nil, &s.stdout, &s.theirs[1], &s.theirs[1])
	if o.Stderr != nil && o.Stderr == o.Stdout {
		s.theirs[2] = s.theirs[1]
	} else {
		open(o.Stderr != nil, &s.stderr, &s.theirs[2], &s.theirs[2])
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// connect starts goroutines that copy between our sides of the streams and the client's streams. The returned channel
// is closed when all output has been read.
func (s *streams) connect(ctx context.Context, o *drivers.ExecOptions) (read <-chan struct{}) {
	if o.Stdin != nil {
		go s.input(o.Stdin)
	}
	done := make(chan struct{})
	var reading sync.WaitGroup
	for pipe, to := range map[*os.File]io.WriteCloser{s.stdout: o.Stdout, s.stderr: o.Stderr} {
		if pipe != nil && to != nil {
			reading.Go(func() {
				_, _ = io.Copy(to, pipe) // a terminal ends with EIO
				_ = to.Close()
			})
		}
	}
	go func() {
		defer close(done)
		reading.Wait()
	}()
	go func() {
		for {
			select {
			case size, ok := <-o.ResizeCh:
				if !ok {
					return
				}
				s.resize(size)
			case <-done:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return done
}

// input copies the client's stream to the command, until either side closes it.
func (s *streams) input(from io.ReadCloser) {
	defer from.Close()
	if _, err := io.Copy(s.stdin, from); err != nil {
		return
	}
	if s.tty {
		_, _ = s.stdin.Write([]byte{4}) // Ctrl-D (VEOF, termios(3)): closing the master would hang up the terminal
	} else {
		s.stdin.Close()
	}
}

// resize sets the size of the terminal. It does not use pty.Setsize, which calls Fd: Fd makes the file blocking, and
// after a concurrent Close, another session's terminal may have the same descriptor number.
func (s *streams) resize(size drivers.TerminalSize) {
	if !s.tty {
		return
	}
	side := func(n int) uint16 { return uint16(min(max(n, 0), math.MaxUint16)) } // a client may send any number
	if raw, err := s.stdin.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			winsize := unix.Winsize{Row: side(size.Height), Col: side(size.Width)}
			_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &winsize)
		})
	}
}

func (s *streams) close() {
	wire.CloseAll(s.theirs[:])
	wire.CloseAll([]*os.File{s.stdin, s.stdout, s.stderr})
}
