// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// streams copies the output of a job's tasks as it is written.
type streams struct {
	run    *jobRun
	quit   chan struct{} // closed by halt: ends the API's follow requests
	wg     sync.WaitGroup
	halt   func() // ends all copies and waits for them
	copies []*stream
	tasks  map[string]bool           // those with copies, by allocation and name
	last   atomic.Pointer[time.Time] // when something came; nil: never
}

// stream is one of a task's two.
type stream struct {
	alloc      *api.Allocation
	task, name string
	out        io.WriteCloser
	copied     int64 // bytes
}

func newStreams(r *jobRun) *streams {
	s := &streams{run: r, quit: make(chan struct{}), tasks: map[string]bool{}}
	s.halt = sync.OnceFunc(func() {
		close(s.quit)
		s.wg.Wait()
	})
	return s
}

// follow starts to copy a task's stdout and stderr, once. The task must have started: before that, Nomad has no log of
// it.
func (s *streams) follow(ctx context.Context, a *api.Allocation, task string, prefix bool) {
	key := a.ID + "/" + task
	if s.tasks[key] {
		return
	}
	s.tasks[key] = true
	label := ""
	if prefix {
		label = task
	}
	for _, name := range []string{api.FSLogNameStdout, api.FSLogNameStderr} {
		c := &stream{alloc: a, task: task, name: name, out: s.run.out.Writer(label)}
		s.copies = append(s.copies, c)
		s.wg.Go(func() { s.copy(ctx, c, true, s.quit) })
	}
}

// copy copies the part of a stream that was not copied yet. With follow it ends when quit is closed, otherwise after
// the last byte.
func (s *streams) copy(ctx context.Context, c *stream, follow bool, quit chan struct{}) {
	fs := s.run.client.AllocFS()
	frames, errs := fs.Logs(c.alloc, follow, c.task, c.name, api.OriginStart, c.copied, quit, s.run.query(ctx))
	in := api.NewFrameReader(frames, errs, quit)
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			s.last.Store(new(time.Now()))
			c.out.Write(buf[:n])
			c.copied += int64(n)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && follow && ctx.Err() == nil {
				s.run.out.Print("! "+c.task, "failed to read "+c.name+": "+err.Error())
			}
			return
		}
	}
}

// came reports whether there was any output.
func (s *streams) came() bool { return s.last.Load() != nil }

// calm waits until there was no output for a moment.
func (s *streams) calm(ctx context.Context) {
	const quiet, most = 400 * time.Millisecond, 5 * time.Second
	start := time.Now()
	for poll.Sleep(ctx, 50*time.Millisecond) == nil {
		last := start
		if came := s.last.Load(); came != nil && came.After(start) {
			last = *came
		}
		if time.Since(last) > quiet || time.Since(start) > most {
			return
		}
	}
}

// drain returns when everything that the tasks have written so far has been copied. Nomad does not end a stream that
// follows a task, even if the task has ended; but it ends a stream that does not follow with the last byte.
func (s *streams) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s.calm(ctx) // Nomad's own collector writes the last bytes after the end is reported
	s.halt()
	for _, c := range s.copies {
		s.copy(ctx, c, false, make(chan struct{}))
	}
	s.stop()
}

// stop ends all copies, and prints last lines without an end.
func (s *streams) stop() {
	s.halt()
	for _, c := range s.copies {
		c.out.Close()
	}
}
