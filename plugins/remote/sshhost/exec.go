// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
)

// Exec is part of endpoint.Endpoint.
func (h *Host) Exec(ctx context.Context, ref endpoint.Ref, o *endpoint.ExecOptions) (*task.Exit, error) {
	if len(o.Command) == 0 {
		return nil, errors.New("a command is missing")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	defer r.Close()
	in := &frames{w: w}
	go in.start(ctx, ref, o) // first: the answer begins when the request is read
	answer, err := h.post(ctx, protocol.OpExec, nil, r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return receive(ctx, answer.Body, o)
}

// frames sends frames. Each method returns when the other side has read it, or the stream ended.
type frames struct {
	mu sync.Mutex
	w  *io.PipeWriter
}

func (f *frames) send(typ byte, b []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return protocol.WriteFrame(f.w, typ, b)
}

// start sends the request, and then what comes of the streams until the context ends.
func (f *frames) start(ctx context.Context, ref endpoint.Ref, o *endpoint.ExecOptions) {
	same := o.Stderr != nil && o.Stderr == o.Stdout
	b, err := json.Marshal(protocol.Request{Ref: ref, Exec: &protocol.Exec{
		Command: o.Command, TTY: o.TTY, Stdin: o.Stdin != nil, Stdout: o.Stdout != nil, Stderr: o.Stderr != nil && !same,
		Same: same,
	}})
	if err != nil || f.send(protocol.FrameRequest, b) != nil {
		_ = f.w.CloseWithError(errors.Join(errors.New("the request can't be sent"), err))
		return
	}
	if o.Stdin != nil {
		go f.stdin(o.Stdin)
	}
	for sizes := o.Resize; ; {
		select {
		case size, ok := <-sizes:
			if !ok {
				sizes = nil
				continue
			}
			if b, err := json.Marshal(size); err != nil || f.send(protocol.FrameResize, b) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// stdin ends with the stream, or with the command.
func (f *frames) stdin(from io.ReadCloser) {
	defer from.Close()
	b := make([]byte, protocol.MaxFrame)
	for {
		n, err := from.Read(b)
		if n > 0 && f.send(protocol.FrameStdin, b[:n]) != nil {
			return
		}
		if err != nil {
			_ = f.send(protocol.FrameStdin, nil)
			return
		}
	}
}

// receive writes the output, and returns how the command ended.
func receive(ctx context.Context, body io.Reader, o *endpoint.ExecOptions) (*task.Exit, error) {
	defer closeAll(o.Stdout, o.Stderr)
	for in := (protocol.FrameReader{R: body}); ; {
		f, err := in.Read()
		if err != nil {
			return nil, unreachable(ctx, err)
		}
		switch f.Type {
		case protocol.FrameStdout:
			err = write(o.Stdout, f.Data)
		case protocol.FrameStderr:
			err = write(o.Stderr, f.Data)
		case protocol.FrameEnd:
			var end protocol.End
			if err := json.Unmarshal(f.Data, &end); err != nil {
				return nil, fmt.Errorf("the shim's answer can't be read: %w", err)
			}
			if end.Error == nil && end.Exit == nil {
				return nil, errors.New("the shim's answer has no exit")
			}
			return end.Exit, end.Error.Err()
		}
		if err != nil {
			return nil, err
		}
	}
}

func write(to io.Writer, b []byte) error {
	if to == nil {
		return nil
	}
	_, err := to.Write(b)
	return err
}

func closeAll(streams ...io.Closer) {
	for _, s := range streams {
		if s != nil {
			_ = s.Close()
		}
	}
}
