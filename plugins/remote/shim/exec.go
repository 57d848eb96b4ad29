// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/outrider-dev/outrider/internal/core/session"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
)

// serveExec is endpoint.Endpoint's Exec. The command ends with the stream, and with this process.
func (s *Shim) serveExec(w http.ResponseWriter, r *http.Request) {
	in := &protocol.FrameReader{R: r.Body, MaxRequest: protocol.MaxBody}
	out := &frameWriter{w: w, flush: http.NewResponseController(w).Flush}
	w.WriteHeader(http.StatusOK)
	exit, err := s.exec(r.Context(), in, out)
	out.send(protocol.FrameEnd, protocol.End{Exit: exit, Error: protocol.ToError(err)})
}

func (s *Shim) exec(ctx context.Context, in *protocol.FrameReader, out *frameWriter) (*task.Exit, error) {
	if err := s.bind(); err != nil {
		return nil, err
	}
	f, err := in.Read()
	if err != nil {
		return nil, err
	}
	var q protocol.Request
	if f.Type != protocol.FrameRequest {
		return nil, fmt.Errorf("a request is missing: frame %q came first", f.Type)
	}
	if err := json.Unmarshal(f.Data, &q); err != nil {
		return nil, fmt.Errorf("request can't be read: %w", err)
	}
	if q.Exec == nil || len(q.Exec.Command) == 0 {
		return nil, errors.New("a command is missing")
	}
	if err := (&task.Command{Path: q.Exec.Command[0], Args: q.Exec.Command[1:]}).Check(); err != nil {
		return nil, err
	}
	l, err := s.running(ctx, q.Ref)
	if err != nil {
		return nil, err
	}
	id := l.o.TaskID
	l.unlock()
	defer s.use(id)()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sizes := make(chan session.Size)
	o := &session.Options{Command: q.Exec.Command, TTY: q.Exec.TTY, Resize: sizes}
	var stdin *io.PipeWriter
	if q.Exec.Stdin || q.Exec.TTY {
		o.Stdin, stdin = io.Pipe()
	}
	if q.Exec.Stdout || q.Exec.TTY {
		o.Stdout = &output{out, protocol.FrameStdout}
	}
	switch {
	case q.Exec.Same:
		o.Stderr = o.Stdout
	case q.Exec.Stderr:
		o.Stderr = &output{out, protocol.FrameStderr}
	}
	go func() {
		defer cancel() // the client is gone
		input(ctx, in, stdin, sizes)
	}()
	exit, err := session.Run(ctx, s.client, id, o)
	if o.Stdin != nil {
		o.Stdin.Close()
	}
	if errors.Is(err, supervisor.ErrEnded) {
		err = errors.New("the task does not run any more")
	}
	return exit, err
}

// input hands the client's frames on until the stream or the context ends.
func input(ctx context.Context, in *protocol.FrameReader, stdin *io.PipeWriter, sizes chan<- session.Size) {
	if stdin != nil {
		defer stdin.Close()
	}
	for {
		f, err := in.Read()
		if err != nil {
			return
		}
		switch {
		case f.Type == protocol.FrameStdin && stdin != nil && len(f.Data) == 0:
			stdin.Close()
		case f.Type == protocol.FrameStdin && stdin != nil:
			_, _ = stdin.Write(f.Data) // one that reads no more is no error of the client's
		case f.Type == protocol.FrameResize:
			var size endpoint.WindowSize
			if json.Unmarshal(f.Data, &size) != nil {
				return
			}
			select {
			case sizes <- session.Size(size):
			case <-ctx.Done():
				return
			}
		}
	}
}

// frameWriter sends frames. Each is flushed: somebody may wait for it.
type frameWriter struct {
	mu    sync.Mutex
	w     io.Writer
	flush func() error
}

func (f *frameWriter) send(typ byte, v any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if protocol.WriteJSON(f.w, typ, v) == nil {
		_ = f.flush()
	}
}

// output is a stream of a command.
type output struct {
	*frameWriter
	typ byte
}

func (o *output) Write(b []byte) (n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n < len(b) && err == nil {
		part := b[n:min(len(b), n+protocol.MaxFrame)]
		if err = protocol.WriteFrame(o.w, o.typ, part); err == nil {
			n += len(part)
		}
	}
	if err == nil {
		err = o.flush()
	}
	return n, err
}

// Close has no effect: the End is the end of both.
func (o *output) Close() error { return nil }
