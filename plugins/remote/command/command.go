// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package command has the operator's commands: nomad-driver-remote list, adopt, release, stop and check. They connect
// to the hosts as the plugin does, but never claim a run.
package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrider-dev/outrider/internal/core/agentconfig"
	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// binary is the name of the plugin's file, and of its block in an agent's configuration.
const binary = "nomad-driver-remote"

// All returns the commands.
func All() []plugin.Command {
	return []plugin.Command{
		{Name: "list", Help: "show the runs of tasks on all endpoints, and their owners", Run: list},
		{Name: "adopt", Help: "keep a run that no allocation follows", Run: act{
			"adopt", shim.Kept, "Kept", "Keeps a run that no allocation follows until it is released: no allocation gets it,\n" +
				"and neither its orphan_timeout nor the end of its job ends it.",
		}.run},
		{Name: "release", Help: "let the next allocation take over a run that no allocation follows", Run: act{
			"release", shim.Released, "Released", "Lets the next allocation of the task take over a run that no allocation\n" +
				"follows: immediately, whatever the state of the previous allocation. The orphan_timeout restarts.",
		}.run},
		{Name: "stop", Help: "end a run that no allocation follows", Run: act{
			"stop", shim.Ending, "Ended", "Kills the processes of a run that no allocation follows. The command waits until\n" +
				"nobody has followed the run for 15 s, because the run's node may come back.",
		}.run},
		{Name: "check", Help: "check whether each endpoint can be used, and whether the agent's API answers", Run: check},
	}
}

// session is one execution of a command.
type session struct {
	json      bool
	answers   func(context.Context) error
	endpoints []*endpoint // in the order of their names
}

// endpoint is a host and its state.
type endpoint struct {
	Name    string `json:"endpoint"`
	Problem string `json:"problem,omitempty"` // why the endpoint cannot be used, in one line
	host.About
	Runs []run `json:"runs"`

	host *host.Host
	link *host.Link
}

// open parses the options and the argument of a command, and reads the plugin's configuration as an agent does.
func open(u plugin.Usage, argv []string) (s *session, argument string, err error) {
	s = &session{}
	flags := flag.NewFlagSet(u.Command, flag.ContinueOnError)
	path := flags.String("config", "/etc/nomad.d", "`PATH` of the agent's configuration, a file or a directory")
	flags.BoolVar(&s.json, "json", false, "print everything as JSON, times in nanoseconds")
	u.Binary = binary
	if u.Arguments != "" {
		u.Least, u.Most = 1, 1
	}
	u.Arguments = strings.TrimSpace("[-config PATH] [-json] " + u.Arguments)
	args, err := u.Parse(flags, argv, os.Stdout)
	if err != nil {
		return nil, "", err
	}

	block, err := agentconfig.Block(*path, binary, os.Args[0])
	if err != nil {
		return nil, "", fmt.Errorf("failed to read the agent's configuration: %s", plain.Line(err.Error(), 0))
	}
	config, err := schema.Of[driver.Config]().DecodeAgent(block)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %s", *path, plain.Line(err.Error(), 0))
	}
	hosts, answers := driver.Endpoints(config)
	s.answers = answers
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		s.endpoints = append(s.endpoints, &endpoint{Name: name, host: hosts[name]})
	}
	if len(hosts) == 0 {
		return nil, "", fmt.Errorf("%s: no endpoint is configured: add endpoint blocks", *path)
	}
	return s, strings.Join(args, ""), nil
}

// look connects to all endpoints concurrently. Its error has a line for each endpoint that cannot be used. Unless keep
// is set, it closes the connections immediately, because a connected host ends runs past their orphan_timeout.
func (s *session) look(ctx context.Context, keep bool) error {
	var all sync.WaitGroup
	for _, e := range s.endpoints {
		all.Go(func() {
			if err := e.look(ctx); err != nil {
				e.Problem = plain.Line(err.Error(), 0)
			}
			if !keep {
				e.host.Close()
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
	e.About = e.link.About
	reply, err := shim.List.On(ctx, e.link.Shim, &shim.Nothing{})
	if err != nil {
		return fmt.Errorf("failed to list the runs of endpoint %q: %w", e.Name, err)
	}
	for _, r := range reply.Runs {
		e.Runs = append(e.Runs, run{Endpoint: e.Name, Names: driver.NamesOf(r.Key), Run: r})
	}
	slices.SortFunc(e.Runs, func(a, b run) int { return cmp.Compare(a.label()+a.TaskID, b.label()+b.TaskID) })
	return nil
}

// check returns an error if an endpoint cannot be used.
func check(ctx context.Context, argv []string) error {
	s, _, err := open(plugin.Usage{
		Command: "check", About: "Connects to each endpoint as the plugin does. Run it as the agent's user.",
	}, argv)
	if err != nil {
		return err
	}
	problems := s.look(ctx, false)
	api := ""
	if err := s.answers(ctx); err != nil {
		api = plain.Line(err.Error(), 0)
	}
	if s.json {
		return cmp.Or(plain.JSON(os.Stdout, map[string]any{"endpoints": s.endpoints, "api_problem": api}), problems)
	}
	for _, e := range s.endpoints {
		if e.Problem != "" {
			continue
		}
		fmt.Printf("endpoint %q can be used: arch %s, cgroup %s, root %t, dir %s, runs: %d\n", e.Name, e.Arch, e.Cgroup,
			e.Root, plain.Line(e.Dir, 0), len(e.Runs))
		if e.Missing != "" {
			fmt.Printf("  note: %s\n", e.Missing)
		}
	}
	if api == "" {
		fmt.Println("the agent's API answers")
	} else {
		fmt.Printf("note: the agent's API can't be used, so a task keeps running when its job is stopped: %s\n", api)
	}
	return problems
}

// run is a run on an endpoint.
type run struct {
	Endpoint string `json:"endpoint"`
	driver.Names
	shim.Run
}

func list(ctx context.Context, argv []string) error {
	s, _, err := open(plugin.Usage{
		Command: "list", About: "Shows the runs of tasks that the hosts have recorded. It changes nothing.",
	}, argv)
	if err != nil {
		return err
	}
	problems := s.look(ctx, false)
	all := []run{}
	for _, e := range s.endpoints {
		all = append(all, e.Runs...)
	}
	if s.json {
		return cmp.Or(plain.JSON(os.Stdout, all), problems)
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ENDPOINT\tID\tRUN\tSTATE\tOWNER\tNODE\tEPOCH\tFOLLOWED")
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.Endpoint, short(r.TaskID), r.label(),
			plain.Line(string(r.State), 20), short(r.Owner.AllocID), short(cmp.Or(r.Owner.NodeID, "-")), r.Epoch, r.followed())
	}
	return cmp.Or(t.Flush(), problems)
}

// label returns the run's name for display: [namespace/]job/group[index]/task.
func (r run) label() string {
	text := fmt.Sprintf("%s/%s[%s]/%s", r.Job, r.Group, r.Index, r.Task)
	switch r.Namespace {
	case "default":
	case "": // another version's format: show the key itself
		text = r.Key
	default:
		text = r.Namespace + "/" + text
	}
	return plain.Line(text, 200)
}

func short(id string) string { return fmt.Sprintf("%.8s", plain.Line(id, 0)) }

// followed returns "yes" if an allocation follows the run, and otherwise what happens to the run.
func (r run) followed() string {
	alone := r.Alone.Round(time.Second)
	switch {
	case r.Followed:
		return "yes"
	case r.State == shim.Ending:
		return "no: the host ends it"
	case r.State == shim.Kept:
		return "no: an operator keeps it"
	case r.OrphanTimeout == 0:
		return fmt.Sprintf("no, for %v: it has no orphan_timeout", alone)
	}
	return fmt.Sprintf("no, for %v: its orphan_timeout is %v", alone, r.OrphanTimeout)
}

// act is a command that changes the state of a run that nobody follows.
type act struct {
	command string
	to      shim.State
	done    string // past participle, for the message after success
	about   string
}

func (a act) run(ctx context.Context, argv []string) error {
	s, argument, err := open(plugin.Usage{
		Command: a.command, Arguments: "RUN",
		About: a.about + "\nRUN is a run's name as \"list\" shows it, or the beginning of its id.",
	}, argv)
	if err != nil {
		return err
	}
	for _, e := range s.endpoints {
		defer e.host.Close()
	}
	problems := s.look(ctx, true)
	e, r, err := s.find(argument)
	if err != nil {
		return errors.Join(problems, err)
	}
	goesOn := slices.Contains([]shim.State{shim.Running, shim.Released, shim.Kept}, r.State)
	switch {
	case r.Followed:
		return fmt.Errorf("an allocation follows the run: drain the allocation's node, or use nomad alloc stop %s",
			plain.Line(r.Owner.AllocID, 40))
	case a.to == shim.Ending && r.State == shim.Kept:
		return errors.New("an operator keeps the run: release it first")
	case a.to != shim.Ending && !goesOn:
		return fmt.Errorf("the run is %s, so its owner cannot be changed", plain.Line(string(r.State), 20))
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := e.change(ctx, r, a.to); err != nil {
		return fmt.Errorf("failed to change the run on endpoint %q: %s", e.Name, plain.Line(err.Error(), 0))
	}
	if s.json {
		return plain.JSON(os.Stdout, r)
	}
	fmt.Printf("%s %s on endpoint %q.\n", a.done, r.label(), e.Name)
	return nil
}

// change sets a run's state. It retries for AbsentTime if the host refuses to end a run that was followed recently.
func (e *endpoint) change(ctx context.Context, r run, to shim.State) error {
	request := &shim.ChangeRequest{TaskID: r.TaskID, Epoch: r.Epoch, State: to}
	until := time.Now().Add(shim.AbsentTime + time.Second)
	for waits := false; ; waits = true {
		_, err := shim.Change.On(ctx, e.link.Shim, request)
		if to != shim.Ending || status.Code(err) != codes.FailedPrecondition || time.Now().After(until) {
			return err
		}
		if !waits {
			fmt.Fprintln(os.Stderr, "Waiting until nobody has followed the run for 15 s")
		}
		time.Sleep(time.Second)
	}
}

// find returns the only run whose name is the argument, or whose ID begins with it.
func (s *session) find(argument string) (at *endpoint, found run, err error) {
	var all []string
	for _, e := range s.endpoints {
		for _, r := range e.Runs {
			if r.label() == argument || strings.HasPrefix(r.TaskID, argument) {
				at, found = e, r
				all = append(all, fmt.Sprintf("%s on %q", plain.Line(r.TaskID, 100), e.Name))
			}
		}
	}
	switch len(all) {
	case 0:
		return nil, run{}, fmt.Errorf("found no run %q: use a name or id that \"list\" shows", argument)
	case 1:
		return at, found, nil
	}
	return nil, run{}, fmt.Errorf("%q matches several runs: use the id of one: %s", argument,
		strings.Join(all, ", "))
}
