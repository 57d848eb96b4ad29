// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// streams copies the output of a job's tasks as it is written.
type streams struct {
	run  *jobRun
	quit chan struct{} // closed by stop: ends the API's follow requests
	wg   sync.WaitGroup

	copies map[stream]*progress

	mu   sync.Mutex // guards last
	last time.Time  // when something came
}

// stream is one of a task's two.
type stream struct{ alloc, task, name string }

// progress is how far its copy is.
type progress struct {
	bytes atomic.Int64
	ended atomic.Bool
}

func newStreams(r *jobRun) *streams {
	return &streams{run: r, quit: make(chan struct{}), copies: map[stream]*progress{}}
}

// follow starts to copy a task's stdout and stderr, once. The task has to have
// been started: before that Nomad knows of no log.
func (s *streams) follow(ctx context.Context, a *api.Allocation, task string, prefix bool) {
	if s.copies[stream{a.ID, task, api.FSLogNameStdout}] != nil {
		return
	}
	label := ""
	if prefix {
		label = task
	}
	for _, name := range []string{api.FSLogNameStdout, api.FSLogNameStderr} {
		p := &progress{}
		s.copies[stream{a.ID, task, name}] = p
		s.wg.Go(func() {
			defer p.ended.Store(true)
			s.copy(ctx, a, task, name, label, p)
		})
	}
}

func (s *streams) copy(ctx context.Context, a *api.Allocation, task, stream, label string, p *progress) {
	frames, errs := s.run.client.AllocFS().Logs(a, true, task, stream, api.OriginStart, 0, s.quit, s.run.query(ctx))
	w := s.run.out.Writer(label)
	defer w.Close() // a last line without its end
	for {
		select {
		case f, ok := <-frames:
			if !ok {
				return
			}
			if f != nil && len(f.Data) > 0 {
				s.mu.Lock()
				s.last = time.Now()
				s.mu.Unlock()
				w.Write(f.Data)
				p.bytes.Add(int64(len(f.Data)))
			}
		case err := <-errs:
			if err != nil && ctx.Err() == nil {
				s.run.out.Print("! "+task, "failed to read "+stream+": "+err.Error())
			}
			return
		case <-s.quit:
			return
		case <-ctx.Done():
			return
		}
	}
}

// came reports whether there was any output.
func (s *streams) came() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.last.IsZero()
}

// calm waits until there was no output for a moment.
func (s *streams) calm(ctx context.Context) {
	const quiet, most = 400 * time.Millisecond, 5 * time.Second
	start := time.Now()
	for poll.Sleep(ctx, 50*time.Millisecond) == nil {
		s.mu.Lock()
		last := s.last
		s.mu.Unlock()
		if last.Before(start) {
			last = start
		}
		if time.Since(last) > quiet || time.Since(start) > most {
			return
		}
	}
}

// drain waits until everything that the tasks have written so far has been copied. Nomad does not end a stream that
// follows a task, even if the task has ended; but it ends a stream that does not follow with the last byte, which tells
// how much there is.
func (s *streams) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s.calm(ctx) // Nomad's own collector writes the last bytes after the end is reported
	want := map[*progress]int64{}
	for key, c := range s.copies {
		if n, err := s.length(ctx, key); err == nil {
			want[c] = n
		}
	}
	for c, n := range want {
		for !c.ended.Load() && c.bytes.Load() < n && poll.Sleep(ctx, 50*time.Millisecond) == nil {
		}
	}
}

// length is how much there is of a stream.
func (s *streams) length(ctx context.Context, key stream) (n int64, err error) {
	quit := make(chan struct{})
	defer close(quit)
	alloc := &api.Allocation{ID: key.alloc}
	fs := s.run.client.AllocFS()
	frames, errs := fs.Logs(alloc, false, key.task, key.name, api.OriginStart, 0, quit, s.run.query(ctx))
	for {
		select {
		case f, ok := <-frames:
			if !ok {
				return n, nil
			}
			n += int64(len(f.Data))
		case err := <-errs:
			return n, err
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}

// stop ends all copies and waits for them.
func (s *streams) stop() {
	close(s.quit)
	s.wg.Wait()
}
