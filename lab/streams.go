// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// stream is one of a task's two outputs.
type stream struct {
	alloc      *api.Allocation
	task, name string
	out        io.WriteCloser
	copied     int64 // bytes
	err        error // of the last read
}

// longestRead is how long an agent may take to return the output that there is.
const longestRead = 30 * time.Second

// read copies what the stream's task has written since the last time, and reports whether that was anything. Nomad may
// not have the file yet: an error counts if there is no better read before the end, see drain.
func (r *jobRun) read(ctx context.Context, s *stream) bool {
	ctx, cancel := context.WithTimeout(ctx, longestRead)
	defer cancel()
	frames, errs := r.client.AllocFS().Logs(s.alloc, false, s.task, s.name, api.OriginStart, s.copied, ctx.Done(),
		r.query(ctx))
	var n int64
	n, s.err = io.Copy(s.out, api.NewFrameReader(frames, errs, nil))
	if s.err == nil {
		s.err = ctx.Err()
	}
	s.copied += n
	return n > 0
}

// output copies the new output of every task that has started, and reports whether there was any.
func (r *jobRun) output(ctx context.Context) (some bool) {
	for _, s := range r.streams {
		some = r.read(ctx, s) || some
	}
	return some
}

// follow adds the streams of a task, once.
func (r *jobRun) follow(a *api.Allocation, task string, prefix bool) {
	for _, s := range r.streams {
		if s.alloc.ID == a.ID && s.task == task {
			return
		}
	}
	label := ""
	if prefix {
		label = task
	}
	for _, name := range []string{api.FSLogNameStdout, api.FSLogNameStderr} {
		r.streams = append(r.streams, &stream{alloc: a, task: task, name: name, out: r.out.Writer(label)})
	}
}

// drain copies output until there was none for a moment: Nomad's own collector writes the last bytes after the end of
// a task is reported. Then it prints last lines without an end.
func (r *jobRun) drain(ctx context.Context) {
	const quiet, most = 400 * time.Millisecond, 5 * time.Second
	start := time.Now()
	for last := start; time.Since(last) < quiet && time.Since(start) < most; {
		if r.output(ctx) {
			last = time.Now()
		}
		if poll.Sleep(ctx, 50*time.Millisecond) != nil {
			break
		}
	}
	for _, s := range r.streams {
		s.out.Close()
		if s.err != nil && ctx.Err() == nil {
			r.out.Print("", fmt.Sprintf("! %s | the end of its %s could not be read: %s", s.task, s.name, plain(s.err)))
		}
	}
}
