// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// patience is how long an endpoint has for an answer.
const patience = 15 * time.Second

var listCommand = command{
	name: "list", help: "show the tasks of each endpoint, whose they are, and what becomes of them",
	usage: "[-json] [-config FILE] [ENDPOINT …]", most: 1000,
	about: "Shows each task with its owner, epoch, lease, state, age, the reason of its last change, and what\n" +
		"the search for tasks that are no longer wanted (gc) would do with it. Nothing is changed.",
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		asJSON := f.Bool("json", false, "all of it as JSON, durations in nanoseconds")
		return func(ctx context.Context, s *session, args []string) error {
			names, err := s.names(args)
			if err != nil {
				return err
			}
			all := s.list(ctx, names, true)
			if *asJSON {
				encoder := json.NewEncoder(s.out)
				encoder.SetIndent("", "  ")
				return encoder.Encode(all)
			}
			for i, l := range all {
				if i > 0 {
					fmt.Fprintln(s.out)
				}
				l.write(s.out)
			}
			return nil
		}
	},
}

// listed is an endpoint as JSON.
type listed struct {
	Endpoint string         `json:"endpoint"`
	Problem  string         `json:"problem,omitempty"` // why it can't be used now
	MaxTasks int            `json:"max_tasks,omitempty"`
	Tasks    []listedObject `json:"tasks"`
}

type listedObject struct {
	*endpoint.Record
	GC    bool   `json:"gc"` // gc would stop and remove it
	GCWhy string `json:"gc_why"`
}

// list asks all endpoints at the same time, and with judge Nomad about each task.
func (s *session) list(ctx context.Context, names []string, judge bool) []listed {
	all := make([]listed, len(names))
	var wait sync.WaitGroup
	for i, name := range names {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			all[i] = listed{Endpoint: name, MaxTasks: s.config.Endpoints[name].MaxTasks, Tasks: []listedObject{}}
			if err := s.fill(ctx, &all[i], judge); err != nil {
				all[i].Problem = err.Error()
			}
		})
	}
	wait.Wait()
	return all
}

func (s *session) fill(ctx context.Context, l *listed, judge bool) error {
	e, err := s.all.Get(l.Endpoint)
	if err != nil {
		return err
	}
	records, err := e.List(ctx)
	if err != nil {
		return err
	}
	var verdicts []engine.Reaped
	if judge {
		if verdicts, err = s.reap(ctx, l.Endpoint, true); err != nil {
			return err
		}
	}
	slices.SortFunc(records, func(a, b *endpoint.Record) int {
		return cmp.Or(strings.Compare(a.Key.String(), b.Key.String()), strings.Compare(a.Name, b.Name))
	})
	for _, r := range records {
		o := listedObject{Record: r, GCWhy: "it is another cluster's"}
		if i := slices.IndexFunc(verdicts, func(v engine.Reaped) bool { return v.Record.Name == r.Name }); i >= 0 {
			o.GC, o.GCWhy = verdicts[i].Gone, verdicts[i].Reason
		}
		l.Tasks = append(l.Tasks, o)
	}
	return nil
}

// reap has an engine without a node look at an endpoint, as the plugin's does.
func (s *session) reap(ctx context.Context, name string, dry bool) ([]engine.Reaped, error) {
	reaper := s.all.Reaper()
	all, err := reaper.Reap(ctx, name, dry)
	return all, errors.Join(err, reaper.Close())
}

// write is the endpoint for a person.
func (l listed) write(w io.Writer) {
	fmt.Fprintf(w, "endpoint %s: ", l.Endpoint)
	if l.Problem != "" {
		fmt.Fprintf(w, "can't be used: %s\n", plain.Line(l.Problem, 0))
		return
	}
	count := tasks(len(l.Tasks))
	if l.MaxTasks > 0 {
		count += fmt.Sprintf(", at most %d", l.MaxTasks)
	}
	fmt.Fprintln(w, count)
	for _, o := range l.Tasks {
		o.write(w)
	}
}

func (o listedObject) write(w io.Writer) {
	fmt.Fprintf(w, "\n  %s\n", plain.Line(o.Name, 0))
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "    %-7s %s\n", name, plain.Line(fmt.Sprintf(format, args...), 0))
	}
	row("task", "%s", o.Key)
	row("state", "%s for %s", o.State, about(o.Age))
	if o.Exit != nil {
		told := ""
		if !o.Told {
			told = ", which Nomad was not told"
		}
		row("exit", "%s", exit(o.Exit)+told)
	}
	row("owner", "%s", owner(o.Record))
	row("reason", "%s", cmp.Or(o.Reason, "-"))
	verdict := "leaves it: "
	if o.GC {
		verdict = "removes it: "
	}
	row("gc", "%s", verdict+o.GCWhy)
}

// owner is whose an object is, in words.
func owner(r *endpoint.Record) string {
	text := fmt.Sprintf("epoch %d, ", r.Epoch)
	who := engine.OwnerOf(r)
	switch {
	case r.GivenUp || r.State == endpoint.Released:
		return text + "none: given up by " + who
	case r.State == endpoint.Exited:
		return text + who
	case r.Lease < 0:
		return text + who + ", whose lease ran out " + about(-r.Lease) + " ago"
	}
	return text + who + ", whose lease lasts another " + about(r.Lease)
}

func exit(e *task.Exit) string {
	switch {
	case e.Lost:
		return "lost: " + e.Reason
	case e.OOMKilled:
		return "out of memory"
	case e.Signal != 0:
		return fmt.Sprintf("signal %d", e.Signal)
	}
	return fmt.Sprintf("code %d", e.Code)
}

// tasks is how many, in words.
func tasks(n int) string {
	if n == 1 {
		return "1 task"
	}
	return fmt.Sprintf("%d tasks", n)
}

// about is a duration for a person.
func about(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
