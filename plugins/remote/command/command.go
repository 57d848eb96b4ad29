// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package command is what an operator does by hand: nomad-driver-remote list, stop and check. Their connections claim
// no run.
package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/outrider-dev/outrider/internal/core/agentconfig"
	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// binary is the name of the plugin in an agent's configuration, which is that of its file.
const binary = "nomad-driver-remote"

// All are the commands.
func All() []plugin.Command {
	return []plugin.Command{
		{Name: "list", Help: "show the runs of tasks on all endpoints, and who has them", Run: list},
		{Name: "stop", Help: "end a run that no allocation follows", Run: stop},
		{Name: "check", Help: "check whether each endpoint can be used, and whether the agent's API answers", Run: check},
	}
}

// session is a call of a command.
type session struct {
	json      bool
	answers   func(context.Context) error
	endpoints []*endpoint // in the order of their names
}

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

// open reads the command's options, and the configuration as an agent does. A command has either an argument or the
// option -json.
func open(u plugin.Usage, argv []string) (s *session, argument string, err error) {
	s = &session{}
	flags := flag.NewFlagSet(u.Command, flag.ContinueOnError)
	path := flags.String("config", "/etc/nomad.d", "`PATH` of the agent's configuration, a file or a directory")
	u.Binary = binary
	if u.Arguments == "" {
		flags.BoolVar(&s.json, "json", false, "all of it as JSON, times in nanoseconds")
		u.Arguments = "[-json]"
	} else {
		u.Least, u.Most = 1, 1
	}
	u.Arguments = "[-config PATH] " + u.Arguments
	args, err := u.Parse(flags, argv, os.Stdout)
	if err != nil {
		return nil, "", err
	}

	block, err := agentconfig.Block(*path, binary, os.Args[0])
	if err != nil {
		return nil, "", fmt.Errorf("the agent's configuration can't be used: %s", sentence(err))
	}
	config, err := schema.Of[driver.Config]().DecodeAgent(block)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %s", *path, sentence(err))
	}
	hosts, answers := driver.Endpoints(config)
	s.answers = answers
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		s.endpoints = append(s.endpoints, &endpoint{Name: name, host: hosts[name]})
	}
	if len(hosts) == 0 {
		return nil, "", fmt.Errorf("%s: no endpoint is configured", *path)
	}
	return s, strings.Join(args, ""), nil
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
	about := e.link.About
	e.Root, e.Cgroup, e.Missing = about.Root, about.Cgroup, about.Missing
	e.Arch, e.Dir = e.link.Arch, plain.Line(e.link.Dir, 0)
	return e.list(ctx)
}

// list asks for the runs.
func (e *endpoint) list(ctx context.Context) error {
	reply, err := shim.List.On(ctx, e.link.Shim, &shim.ListRequest{})
	if err != nil {
		return fmt.Errorf("endpoint %q can't list its runs: %w", e.Name, err)
	}
	e.Runs = nil
	for _, r := range reply.Runs {
		e.Runs = append(e.Runs, run{Endpoint: e.Name, Names: driver.NamesOf(r.Key), Run: r})
	}
	slices.SortFunc(e.Runs, func(a, b run) int { return cmp.Compare(a.label()+a.TaskID, b.label()+b.TaskID) })
	return nil
}

// check returns an error if an endpoint can't be used.
func check(ctx context.Context, argv []string) error {
	s, _, err := open(plugin.Usage{
		Command: "check", About: "Connects to each endpoint as the plugin does. Start it as the agent's user.",
	}, argv)
	if err != nil {
		return err
	}
	problems := s.look(ctx, false)
	api := ""
	if err := s.answers(ctx); err != nil {
		api = sentence(err)
	}
	if s.json {
		return cmp.Or(printJSON(map[string]any{"endpoints": s.endpoints, "api_problem": api}), problems)
	}
	for _, e := range s.endpoints {
		if e.Problem != "" {
			continue
		}
		fmt.Printf("endpoint %q can be used: arch %s, cgroup %s, root %t, dir %s, runs: %d\n", e.Name, e.Arch, e.Cgroup,
			e.Root, e.Dir, len(e.Runs))
		if e.Missing != "" {
			fmt.Printf("  note: %s\n", e.Missing)
		}
	}
	if api == "" {
		fmt.Println("the agent's API answers")
	} else {
		fmt.Printf("note: a task whose job is stopped goes on: %s\n", api)
	}
	return problems
}

// controls are those characters for a terminal that JSON does not escape.
var controls = regexp.MustCompile(`[\x{7f}-\x{9f}]`)

func printJSON(value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Printf("%s\n", controls.ReplaceAllFunc(text, func(c []byte) []byte {
		return fmt.Appendf(nil, `\u%04x`, []rune(string(c))[0])
	}))
	return err
}

// sentence is the message of an error, which may have a host's words in it, on one line.
func sentence(err error) string { return plain.Line(err.Error(), 0) }
