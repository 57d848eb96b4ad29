// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// ExecTask is part of drivers.DriverPlugin: it runs a command in the task and returns the end of
// its combined output (plain.Tail), at most drivers.CheckBufSize bytes.
func (d *Driver) ExecTask(id string, cmd []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	if f := d.forwarder(id); f != nil {
		return f.ExecTask(cmd, timeout)
	}
	t, err := d.executor(id, cmd)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(d.ctx, timeout)
	defer cancel()
	var out tail
	e, err := t.Exec(ctx, &drivers.ExecOptions{Command: cmd, Stdout: &out, Stderr: &out})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("command did not end within %v: %w", timeout, err)
	}
	if err != nil {
		return nil, err
	}
	return &drivers.ExecTaskResult{Stdout: out.Tail, ExitResult: exitResult(e)}, nil
}

// ExecTaskStreamingRaw is part of drivers.ExecTaskStreamingRawDriver, for `nomad alloc exec`. The
// command is killed when ctx ends.
func (d *Driver) ExecTaskStreamingRaw(
	ctx context.Context, id string, cmd []string, tty bool, stream drivers.ExecTaskStream,
) error {
	if f := d.forwarder(id); f != nil {
		return f.ExecTaskStreamingRaw(ctx, cmd, tty, stream)
	}
	t, err := d.executor(id, cmd)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdin, input := io.Pipe()
	defer stdin.Close()
	sizes := make(chan drivers.TerminalSize, 1)
	begun, inputEnded := time.Now(), make(chan struct{})
	go receive(stream, input, sizes, inputEnded) // ends when the caller closes the stream, after we have returned

	out := &sender{stream: stream}
	var e *task.Exit
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e, err = t.Exec(ctx, &drivers.ExecOptions{
			Command: cmd, Tty: tty, Stdin: stdin, ResizeCh: sizes,
			Stdout: &output{out, func(op *proto.ExecTaskStreamingIOOperation) *drivers.ExecTaskStreamingResponseMsg {
				return &drivers.ExecTaskStreamingResponseMsg{Stdout: op}
			}},
			Stderr: &output{out, func(op *proto.ExecTaskStreamingIOOperation) *drivers.ExecTaskStreamingResponseMsg {
				return &drivers.ExecTaskStreamingResponseMsg{Stderr: op}
			}},
		})
	}()
	gone := out.heartbeat(ended)
	cancel()
	<-ended
	if gone != nil {
		return fmt.Errorf("command was killed because its client disconnected: %w", gone)
	}
	if err != nil {
		return err
	}
	select {
	case <-inputEnded:
	case <-time.After(time.Until(begun.Add(inputTime))):
	}
	return out.send(drivers.NewExecStreamingResponseExit(exitResult(e).ExitCode))
}

// inputTime limits how long after a command's start its exit waits for the end of the input. If there is no input,
// Nomad's client sends the end of the input immediately. If the stream is closed before that message arrives, the
// client fails with "unexpected EOF" although it got the exit (plugins/drivers/client.go, ExecTaskStreamingRaw).
const inputTime = 250 * time.Millisecond

// forwarder returns the task if it is a Forwarder, or nil.
func (d *Driver) forwarder(id string) Forwarder {
	h, err := d.handle(id)
	if err != nil {
		return nil
	}
	f, _ := h.task.(Forwarder)
	return f
}

// executor returns the task, or an error if the command can't be run in it.
func (d *Driver) executor(id string, cmd []string) (Executor, error) {
	h, err := d.handle(id)
	if err != nil {
		return nil, err
	}
	t, ok := h.task.(Executor)
	if c, err := d.Capabilities(); err != nil || !ok || !c.Exec {
		return nil, fmt.Errorf("driver %s can't run commands in tasks", d.name)
	}
	if len(cmd) == 0 || cmd[0] == "" {
		return nil, errors.New("command is empty")
	}
	return t, nil
}

// receive passes on the user's input and window sizes. Only the newest size is kept, so an engine that does not read
// sizes does not block the input. When the input ends, receive closes the channel ended.
func receive(
	stream drivers.ExecTaskStream, input *io.PipeWriter, sizes chan drivers.TerminalSize, ended chan<- struct{},
) {
	end := sync.OnceFunc(func() { close(ended) })
	defer end()
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		if in := m.Stdin; in != nil {
			if len(in.Data) > 0 {
				_, _ = input.Write(in.Data) // an error is ignored: the command may still write output
			}
			if in.Close {
				input.Close()
				end()
			}
		}
		if size := m.TtySize; size != nil {
			select {
			case <-sizes:
			default:
			}
			sizes <- drivers.TerminalSize{Height: int(size.Height), Width: int(size.Width)}
		}
	}
}

// sender serializes the messages to a stream, which allows one sender at a time.
type sender struct {
	mu     sync.Mutex
	stream drivers.ExecTaskStream
}

func (s *sender) send(m *drivers.ExecTaskStreamingResponseMsg) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(m)
}

// heartbeatTime is the interval of the empty messages to a command's client, which ignores them
// (api/allocations_exec.go). Nomad detects that a client is gone only when it sends a message to the client.
const heartbeatTime = 2 * time.Second

// heartbeat sends empty messages until the command has ended. It returns an error if the client is gone.
func (s *sender) heartbeat(ended <-chan struct{}) error {
	beat := time.NewTicker(heartbeatTime)
	defer beat.Stop()
	for {
		select {
		case <-ended:
			return nil
		case <-beat.C:
			if err := s.send(&drivers.ExecTaskStreamingResponseMsg{}); err != nil {
				return err
			}
		}
	}
}

// output sends one of a command's output streams to the client.
type output struct {
	to      *sender
	message func(*proto.ExecTaskStreamingIOOperation) *drivers.ExecTaskStreamingResponseMsg
}

func (o *output) Write(p []byte) (int, error) {
	return len(p), o.to.send(o.message(&proto.ExecTaskStreamingIOOperation{Data: p}))
}

func (o *output) Close() error {
	return o.to.send(o.message(&proto.ExecTaskStreamingIOOperation{Close: true}))
}

// tail keeps the end of a command's output.
type tail struct{ plain.Tail }

func (*tail) Close() error { return nil }
