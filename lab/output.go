// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// stream is the standard output or the standard error of a task, which is copied to the user.
type stream struct {
	alloc      *api.Allocation
	task, name string
	out        io.WriteCloser
	copied     int64 // number of bytes
}

// show prints new events of allocations, begins to follow tasks that have started, and returns the allocations.
func (r *jobRun) show(ctx context.Context, ids []string) (allocs []*api.Allocation, err error) {
	for _, id := range ids {
		a, _, err := r.client.Allocations().Info(id, r.query(ctx))
		if err != nil {
			return nil, fmt.Errorf("failed to read allocation %.8s: %w", id, err)
		}
		for name, s := range a.TaskStates {
			r.events(id, name, s)
			if !s.StartedAt.IsZero() {
				r.follow(a, name, len(ids) > 1 || len(a.TaskStates) > 1)
			}
		}
		allocs = append(allocs, a)
	}
	return allocs, nil
}

// usual are the types of events that are not worth printing, because every task has them.
var usual = []string{
	api.TaskReceived, api.TaskSetup, api.TaskStarted, api.TaskNotRestarting, api.TaskKilling, api.TaskKilled,
}

// events prints a task's new events, except the usual ones. Without events, the lab would look stuck during a start or
// a restart, which can take a minute.
func (r *jobRun) events(alloc, name string, s *api.TaskState) {
	key := alloc + "/" + name
	for _, e := range s.Events[min(r.shown[key], len(s.Events)):] {
		well := e.Type == api.TaskTerminated && e.ExitCode == 0 && e.Signal == 0
		if well || slices.Contains(usual, e.Type) {
			continue
		}
		text := "- " + name + " | " + e.Type + ": " + nomad.Plain(e.DisplayMessage)
		r.out.Print("", term.Wrap(text, term.Columns(r.lab.out), "    "))
	}
	r.shown[key] = len(s.Events)
}

// follow adds a task's streams, unless it has added them before. If prefix is set, lines begin with the task's name.
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

// output copies what tasks have written since the last call, and reports whether tasks have written anything at all. If
// Nomad has not created a file yet, a later call copies it.
func (r *jobRun) output(ctx context.Context) (some bool) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, s := range r.streams {
		frames, errs := r.client.AllocFS().Logs(s.alloc, false, s.task, s.name, api.OriginStart, s.copied, ctx.Done(),
			r.query(ctx))
		n, _ := io.Copy(s.out, api.NewFrameReader(frames, errs, nil))
		s.copied += n
		some = some || s.copied > 0
	}
	return some
}

// drain copies the rest of the output, and then prints last lines without a newline. It takes half a second, because
// Nomad's own collector may write the last bytes after Nomad has reported the end of a task.
func (r *jobRun) drain(ctx context.Context) {
	for range 10 {
		r.output(ctx)
		if poll.Sleep(ctx, 50*time.Millisecond) != nil {
			break
		}
	}
	for _, s := range r.streams {
		s.out.Close()
	}
}
