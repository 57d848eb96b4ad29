// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Exec is part of core.Executor.
func (t *remoteTask) Exec(ctx context.Context, o *drivers.ExecOptions) (*task.Exit, error) {
	link, err := t.connected()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the stream's readers
	defer cancel()
	s := &execStream{ctx: ctx, options: o, input: make(chan *drivers.ExecTaskStreamingRequestMsg)}
	go s.readInput()
	err = link.Driver.ExecTaskStreamingRaw(ctx, t.config.ID, o.Command, o.Tty, s)
	if s.exit != nil {
		return s.exit, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err == nil || !link.Alive() {
		return nil, fmt.Errorf("the connection to endpoint %q was lost, and with it the command", t.saved.Endpoint)
	}
	return nil, err
}

// execStream is Nomad's stream of a command in a task, from and to the streams of drivers.ExecOptions.
type execStream struct {
	ctx     context.Context
	options *drivers.ExecOptions
	input   chan *drivers.ExecTaskStreamingRequestMsg
	exit    *task.Exit // set by Send, read when the call has returned
}

// readInput passes on the standard input until its end.
func (s *execStream) readInput() {
	buffer := make([]byte, 32<<10)
	var input io.Reader = strings.NewReader("") // where there is none, it is at its end
	if s.options.Stdin != nil {
		input = s.options.Stdin
	}
	for {
		n, err := input.Read(buffer)
		data := append([]byte(nil), buffer[:n]...)
		message := &proto.ExecTaskStreamingIOOperation{Data: data, Close: err != nil}
		select {
		case s.input <- &drivers.ExecTaskStreamingRequestMsg{Stdin: message}:
		case <-s.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// Recv is part of drivers.ExecTaskStream: what goes to the command.
func (s *execStream) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	select {
	case m := <-s.input:
		return m, nil
	case size, ok := <-s.options.ResizeCh:
		if !ok {
			s.options.ResizeCh = nil
			return s.Recv()
		}
		return &drivers.ExecTaskStreamingRequestMsg{TtySize: &proto.ExecTaskStreamingRequest_TerminalSize{
			Height: int32(size.Height), Width: int32(size.Width), //nolint:gosec // as Nomad sent them
		}}, nil
	case <-s.ctx.Done():
		return nil, io.EOF
	}
}

// Send is part of drivers.ExecTaskStream: what comes from the command.
func (s *execStream) Send(m *drivers.ExecTaskStreamingResponseMsg) error {
	if err := write(s.options.Stdout, m.Stdout); err != nil {
		return err
	}
	if err := write(s.options.Stderr, m.Stderr); err != nil {
		return err
	}
	if m.Exited && m.Result != nil {
		s.exit = &task.Exit{Code: int(m.Result.ExitCode), OOMKilled: m.Result.OomKilled}
	}
	return nil
}

// write writes to a stream, which may be nil.
func write(to io.WriteCloser, m *proto.ExecTaskStreamingIOOperation) error {
	if m == nil || to == nil {
		return nil
	}
	if len(m.Data) > 0 {
		if _, err := to.Write(m.Data); err != nil {
			return err
		}
	}
	if m.Close {
		return to.Close()
	}
	return nil
}
