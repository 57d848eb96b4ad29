// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// execMark is a variable by which the processes of a command are found again.
const execMark = "OUTRIDER_EXEC"

// Exec is part of endpoint.Endpoint.
func (e *Endpoint) Exec(ctx context.Context, ref endpoint.Ref, o *endpoint.ExecOptions) (*task.Exit, error) {
	v, err := e.own(ctx, ref)
	if err != nil {
		return nil, err
	}
	if !v.box.running() {
		return nil, fmt.Errorf("%s does not run", ref.Name)
	}
	mark := execMark + "=" + rand.Text()
	created, err := e.api.ExecCreate(ctx, v.box.id, client.ExecCreateOptions{
		Cmd: replaced(o.Command), TTY: o.TTY, Env: []string{mark},
		AttachStdin: o.Stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, failed("run the command", err)
	}
	a, err := e.api.ExecAttach(ctx, created.ID, client.ExecAttachOptions{TTY: o.TTY})
	if err != nil {
		return nil, failed("run the command", err)
	}
	defer a.Close()
	stop := context.AfterFunc(ctx, func() {
		e.killExec(context.WithoutCancel(ctx), v.box.id, mark)
		a.Close()
	})
	defer stop()
	if o.Stdin != nil {
		go func() { // ends with its reader, which the caller closes, or with the connection
			_, _ = io.Copy(a.Conn, o.Stdin)
			if o.TTY {
				_, _ = a.Conn.Write([]byte{4}) // VEOF of termios(3): Docker would end the output with the input
			} else {
				_ = a.CloseWrite()
			}
		}()
	}
	resized := make(chan struct{})
	defer close(resized)
	if o.TTY && o.Resize != nil {
		go e.resize(ctx, created.ID, o.Resize, resized)
	}
	stdout, stderr := output(o.Stdout), output(o.Stderr)
	if o.TTY {
		_, err = io.Copy(stdout, a.Reader)
	} else {
		err = split(a.Reader, stdout, stderr)
	}
	err = errors.Join(closed(o.Stdout), closed(o.Stderr), err)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, failed("copy the command's output", err)
	}
	return e.execExit(ctx, created.ID)
}

func output(w io.WriteCloser) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// split writes what a command has written until its end.
func split(from io.Reader, stdout, stderr io.Writer) error {
	in := frames{body: from}
	defer in.idle()
	for {
		stream, frame, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch stream {
		case 1:
			_, err = stdout.Write(frame)
		case 2:
			_, err = stderr.Write(frame)
		default:
			err = ofEngine(stream, frame)
		}
		if err != nil {
			return err
		}
	}
}

func closed(w io.WriteCloser) error {
	if w == nil {
		return nil
	}
	return w.Close()
}

// execExit waits for the exit of a command whose output has ended.
func (e *Endpoint) execExit(ctx context.Context, id string) (*task.Exit, error) {
	for poll := 5 * time.Millisecond; ; poll = min(2*poll, time.Second) {
		r, err := e.api.ExecInspect(ctx, id, client.ExecInspectOptions{})
		if err != nil {
			return nil, failed("read the command's exit code", err)
		}
		if !r.Running {
			return &task.Exit{Code: r.ExitCode, At: e.clock.now()}, nil
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// resize passes sizes on until the command has ended.
func (e *Endpoint) resize(ctx context.Context, id string, sizes <-chan endpoint.WindowSize, ended <-chan struct{}) {
	for {
		select {
		case s, ok := <-sizes:
			if !ok {
				return
			}
			o := client.ExecResizeOptions{Height: uint(max(0, s.Height)), Width: uint(max(0, s.Width))}
			// it may not have started yet: the size of a window is not worth more than a second
			for range 20 {
				if _, err := e.api.ExecResize(ctx, id, o); err == nil || ctx.Err() != nil {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// killScript kills what has a variable in its environment. The image has no better tool, and perhaps not these; the API
// has none at all.
const killScript = `for p in /proc/[0-9]*; do
case "$(cat "$p/environ" 2>/dev/null)" in *"$0"*) kill -KILL "${p#/proc/}";; esac
done`

// killExec kills the processes of a command.
func (e *Endpoint) killExec(ctx context.Context, container, mark string) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r, err := e.api.ExecCreate(ctx, container, client.ExecCreateOptions{
		Cmd: []string{"sh", "-c", killScript, mark}, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return
	}
	a, err := e.api.ExecAttach(ctx, r.ID, client.ExecAttachOptions{})
	if err != nil {
		return
	}
	defer a.Close()
	defer context.AfterFunc(ctx, a.Close)()
	_, _ = io.Copy(io.Discard, a.Reader)
}
