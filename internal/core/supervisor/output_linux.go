// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/collector"
	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// How long the supervisor waits for the collector: openTime to open a new task's log files, endTime at the end of a
// task (the collector itself gives up earlier), and lateTime in reportLate.
const (
	openTime = 30 * time.Second // an overloaded machine takes 10 s to start a collector
	endTime  = 15 * time.Second
	lateTime = time.Second / 2
)

// collection is the state of a task's output collection. It has no open file of the allocation, because only the
// collector opens such files.
type collection struct {
	task.Output
	opened chan struct{} // closed when the collector has taken over the output, or has failed to
	err    error         // why the collector failed; set before opened is closed
	from   task.LogPlace // the place in the logs where stderr began; set before opened is closed
	late   bool          // the output was taken after the task had ended, so some may be missing; guarded by mu
}

// collected reports whether the output is collected at all.
func (c *collection) collected() bool {
	return c.Collector == task.CollectorDriver || c.Collector == task.CollectorNomad
}

func newCollector(s *server) *collector.Client {
	return collector.NewClient(collector.Config{
		Store: s.store, Argv0: argv0,
		Build:   s.build + " in " + s.surroundings.id(), // a collector finds log files in its mount namespace only
		OnEvent: func(e collector.Event) { s.event(e.ID, "%s", e.Message) },
		Forks:   &s.forks,
		OnStart: func(pid int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.launchers[pid] = true
		},
		OnEnd: s.forgetLauncher,
		Log:   func(format string, args ...any) { slog.Info(fmt.Sprintf(format, args...)) },
	})
}

// withOutput calls a function once the collector has taken over a task's output, or has failed to. It does nothing if
// the output is not collected.
func (s *server) withOutput(p *process, do func(ctx context.Context)) {
	if !p.output.collected() {
		return
	}
	<-p.output.opened
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	do(ctx)
}

// openOutput creates a new task's output streams, and returns the task's ends. Close these once the task has them. The
// collector gets the other ends in the background: p.output.opened is closed when it has taken them, or failed to.
func (s *server) openOutput(p *process, st *task.State) (stdio [3]*os.File, err error) {
	if !p.output.collected() {
		close(p.output.opened)
		return stdio, nil // nil files stand for /dev/null
	}
	spec := collector.SpecOf(st)
	if st.Output.Collector == task.CollectorNomad {
		ends, err := s.startCollection(p, spec)
		copy(stdio[1:], ends)
		return stdio, err
	}
	var reads []*os.File
	for i, name := range collector.Streams {
		var read *os.File
		if stdio[i+1], read, err = s.makeFIFO(&spec, i); err != nil {
			wire.CloseAll(reads)
			close(p.output.opened)
			return stdio, fmt.Errorf("failed to create the task's %s: %w", name, err)
		}
		reads = append(reads, read)
	}
	st.Output, p.output.Output = spec.Output, spec.Output
	go func() {
		defer wire.CloseAll(reads)
		_, _ = s.startCollection(p, spec, reads...)
	}()
	return stdio, nil
}

// makeFIFO creates the FIFO of stream i and opens both of its ends.
func (s *server) makeFIFO(spec *collector.Spec, i int) (end, read *os.File, err error) {
	path := s.store.FIFO(spec.ID, collector.Streams[i])
	if err := logs.MakeFIFO(path, spec.UID, spec.GID); err != nil {
		return nil, nil, err
	}
	if end, err = logs.OpenTaskEnd(path); err != nil {
		return nil, nil, err
	}
	fd, err := logs.OpenReadEnd(path)
	if err != nil {
		end.Close()
		return nil, nil, err
	}
	spec.Output.FIFOs[i], err = task.InodeOf(fd)
	if err != nil {
		end.Close()
		unix.Close(fd)
		return nil, nil, err
	}
	return end, os.NewFile(uintptr(fd), path), nil
}

func (s *server) startCollection(p *process, spec collector.Spec, reads ...*os.File) ([]*os.File, error) {
	defer close(p.output.opened)
	ctx, cancel := context.WithTimeout(context.Background(), openTime)
	defer cancel()
	ends, from, err := s.collector.Start(ctx, spec, reads...)
	if err != nil && ctx.Err() != nil {
		err = errors.New("log directory does not respond: its file system hangs")
	}
	if err == nil && spec.Output.Collector == task.CollectorNomad && len(ends) != len(collector.Streams) {
		wire.CloseAll(ends)
		ends, err = nil, errors.New("the collector returned no pipes for the output")
	}
	p.output.from, p.output.err = from, err
	return ends, err
}

// resumeOutput continues to collect the output of a task that an earlier supervisor started. An error becomes an event,
// because it must not end a running task.
func (s *server) resumeOutput(p *process, st *task.State) {
	if !p.output.collected() {
		close(p.output.opened)
		return
	}
	late := !runs(st.Identity) && st.Output.Collector == task.CollectorDriver
	spec := collector.SpecOf(st)
	s.collector.Keep(spec) // first, so that any new collector gets this task
	go func() {
		defer close(p.output.opened)
		ctx, cancel := context.WithTimeout(context.Background(), openTime)
		defer cancel()
		always, err := s.collector.Resume(ctx, spec)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) { // the collector itself reports hangs
			s.event(s.idOf(p), "Output: %v", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		p.output.late = late && !always
	}()
}

// reportLate reports in an event, only once, that the end of a task's output may be missing.
func (s *server) reportLate(p *process) {
	select {
	case <-p.output.opened:
	case <-time.After(lateTime):
		return // a file system hangs, which the collector reports
	}
	s.mu.Lock()
	late := p.output.late
	p.output.late = false
	s.mu.Unlock()
	if late {
		s.event(s.idOf(p), "Output: its end may be missing: the task ended while no collector ran")
	}
}

// drainOutput returns when all output of an ended task is in its log files, so that the last line is there before the
// exit is reported. It does not wait for a file system that hangs, nor for space on a full disk.
func (s *server) drainOutput(p *process) {
	s.withOutput(p, func(ctx context.Context) {
		if _, err := s.collector.Drain(ctx, s.idOf(p)); err != nil {
			s.event(s.idOf(p), "Output: its end may be missing: %v", err)
		}
	})
}

// renameOutput informs the collector of a task's new id, because the id is part of the path of the task's directory.
func (s *server) renameOutput(p *process, old, id string) {
	s.withOutput(p, func(ctx context.Context) {
		if err := s.collector.Rename(ctx, old, id); err != nil {
			s.event(id, "Output: %v", err) // not fatal: the next collector gets the new id
		}
	})
}

// closeOutput ends the collection of a task's output.
func (s *server) closeOutput(p *process) {
	s.withOutput(p, func(ctx context.Context) {
		_ = s.collector.Close(ctx, s.idOf(p)) // if this fails, the collector has exited, which also closes the output
	})
}
