// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// endpoint is a host as it was found.
type endpoint struct {
	Name    string `json:"endpoint"`
	Problem string `json:"problem,omitempty"` // why it can't be used, a sentence
	Missing string `json:"missing,omitempty"` // what it can be used without

	Arch   string `json:"arch,omitempty"`
	Root   bool   `json:"root"`
	Cgroup string `json:"cgroup,omitempty"`
	Dir    string `json:"dir,omitempty"`
	Runs   []run  `json:"runs"`

	host *host.Host
	link *host.Link
}

// look connects to the endpoints, all at the same time. It returns an error with a line for each that can't be used. A
// connection that is not kept ends at once: it is no node's, for which a host would end what has no owner any more.
func (s *session) look(ctx context.Context, keep bool) error {
	var all sync.WaitGroup
	for _, e := range s.endpoints {
		all.Go(func() {
			if err := e.look(ctx); err != nil {
				e.Problem = sentence(err)
			}
			if !keep {
				_ = e.host.Close()
			}
		})
	}
	all.Wait()
	var problems []error
	for _, e := range s.endpoints {
		if e.Problem != "" {
			problems = append(problems, errors.New(e.Problem))
		}
	}
	return errors.Join(problems...)
}

func (e *endpoint) look(ctx context.Context) (err error) {
	if e.link, err = e.host.Connect(ctx); err != nil {
		return err
	}
	about := e.link.About()
	e.Root, e.Cgroup, e.Missing = about.Root, about.Cgroup, about.Missing
	e.Arch, e.Dir = e.link.Arch, plain.Line(e.link.Dir, 0)
	if err := e.list(ctx); err != nil {
		return err
	}
	if about.Problem != nil {
		return fmt.Errorf("endpoint %q can't be used: %w", e.Name, about.Problem)
	}
	return nil
}

// list asks for the runs.
func (e *endpoint) list(ctx context.Context) error {
	reply, err := e.link.Shim.List(ctx, &shim.ListRequest{})
	if err != nil {
		return fmt.Errorf("endpoint %q can't list its runs: %s", e.Name, sentence(err))
	}
	e.Runs = nil
	for _, r := range reply.Runs {
		e.Runs = append(e.Runs, run{Endpoint: e.Name, Names: driver.NamesOf(r.Key), Run: r})
	}
	slices.SortFunc(e.Runs, func(a, b run) int {
		return cmp.Or(cmp.Compare(a.label(), b.label()), cmp.Compare(a.TaskID, b.TaskID))
	})
	return nil
}

var checkCommand = command{
	name: "check", help: "check whether each endpoint can be used, and whether the agent's API answers",
	about: "Connects to each endpoint as the plugin does. Start it as the agent's user.",
	run:   func(ctx context.Context, s *session, _ string) error { return s.check(ctx) },
}

// check returns an error if an endpoint can't be used.
func (s *session) check(ctx context.Context) error {
	problems := s.look(ctx, false)
	api := ""
	if err := s.answers(ctx); err != nil {
		api = sentence(err)
	}
	if s.json {
		return cmp.Or(s.print(map[string]any{"endpoints": s.endpoints, "api_problem": api}), problems)
	}
	for _, e := range s.endpoints {
		if e.Problem != "" {
			continue
		}
		fmt.Fprintf(s.out, "endpoint %q can be used: arch %s, cgroup %s, root %t, dir %s, runs: %d\n", e.Name, e.Arch,
			e.Cgroup, e.Root, e.Dir, len(e.Runs))
		if e.Missing != "" {
			fmt.Fprintf(s.out, "  note: %s\n", e.Missing)
		}
	}
	if api == "" {
		fmt.Fprintln(s.out, "the agent's API answers")
	} else {
		fmt.Fprintf(s.out, "note: a task whose job is stopped goes on: %s\n", api)
	}
	return problems
}
