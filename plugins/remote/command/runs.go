// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

var listCommand = command{
	name: "list", help: "show the runs of tasks on all endpoints, and who has them",
	about: "Shows what the hosts record of the runs of tasks there. Nothing is changed.",
	run:   func(ctx context.Context, s *session, _ string) error { return s.list(ctx) },
}

var stopCommand = command{
	name: "stop", help: "end a run that no allocation follows", argument: "RUN",
	about: "Kills the processes of a run that no allocation follows, and removes what the host has of it.\n" +
		"RUN is as list shows it, or the beginning of its task's id. A run is ended when nobody has followed\n" +
		"it for 15 s: until then its node may come back.",
	run: func(ctx context.Context, s *session, argument string) error { return s.stop(ctx, argument) },
}

// run is a run on an endpoint.
type run struct {
	Endpoint string `json:"endpoint"`
	driver.Names
	shim.Run
}

func (s *session) list(ctx context.Context) error {
	problems := s.look(ctx, false)
	all := []run{}
	for _, e := range s.endpoints {
		all = append(all, e.Runs...)
	}
	if s.json {
		return cmp.Or(s.print(all), problems)
	}
	t := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ENDPOINT\tID\tRUN\tSTATE\tOWNER\tALONE\tEPOCH\tMESSAGE")
	for _, r := range all {
		alone := "-"
		if !r.Followed {
			alone = rough(r.Alone)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.Endpoint, short(r.TaskID), r.label(),
			plain.Line(string(r.State), 20), r.owner(short), alone, r.Epoch, r.message())
	}
	return cmp.Or(t.Flush(), problems)
}

// label names the task for a person.
func (r run) label() string {
	text := fmt.Sprintf("%s/%s[%s]/%s", r.Job, r.Group, r.Index, r.Task)
	switch r.Namespace {
	case "default":
	case "": // the key is not one of this version
		text = r.Key
	default:
		text = r.Namespace + "/" + text
	}
	return plain.Line(text, 200)
}

// owner is the allocation that has the run, or had it last, and its node.
func (r run) owner(id func(string) string) string {
	if r.Owner.NodeID == "" { // it was released
		return id(r.Owner.AllocID)
	}
	return id(r.Owner.AllocID) + " on node " + id(r.Owner.NodeID)
}

func short(id string) string { return fmt.Sprintf("%.8s", plain.Line(id, 0)) }

func long(id string) string { return plain.Line(id, 40) }

// message is what becomes of the run.
func (r run) message() string {
	switch {
	case r.Ending:
		return "the host ends it"
	case r.State == shim.Told:
		return "it has ended, and Nomad has its exit"
	case r.Followed:
		return "-"
	case r.OrphanTimeout == 0:
		return "it has no orphan_timeout"
	}
	return "its orphan_timeout ends it in " + rough(max(r.OrphanTimeout-r.Alone, 0))
}

// rough is a time for a person.
func rough(d time.Duration) string {
	switch {
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// stopTime is how long a host may take to end a run.
const stopTime = time.Minute

func (s *session) stop(ctx context.Context, argument string) error {
	if problems := s.look(ctx, true); problems != nil {
		return fmt.Errorf("%w: use -endpoint NAME to look at the others", problems)
	}
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	e, r, err := s.find(argument)
	if err != nil {
		return err
	}
	for _, other := range s.endpoints {
		if other != e { // it would end what has no owner any more
			_ = other.host.Close()
		}
	}
	for waits := false; ; waits = true {
		if r.Followed {
			return fmt.Errorf("allocation %s has it: use nomad alloc stop %s", r.owner(long), long(r.Owner.AllocID))
		}
		if _, err := e.link.Shim.End(ctx, &shim.EndRequest{TaskID: r.TaskID, Epoch: r.Epoch}); err != nil {
			return fmt.Errorf("endpoint %q can't end it: %s", e.Name, sentence(err))
		}
		if err := e.list(ctx); err != nil {
			return err
		}
		i := slices.IndexFunc(e.Runs, func(other run) bool { return other.TaskID == r.TaskID })
		if i < 0 {
			fmt.Fprintf(s.out, "Ended %s on endpoint %q.\n", r.label(), e.Name)
			return nil
		}
		r = e.Runs[i]
		if !waits {
			fmt.Fprintln(s.err, "Waiting until nobody has followed it for 15 s")
		}
		time.Sleep(time.Second)
	}
}

// find returns the only run that a person means.
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
		return nil, run{}, fmt.Errorf("there is no run %q: list shows what there is", argument)
	case 1:
		return at, found, nil
	}
	return nil, run{}, fmt.Errorf("%q is several runs, of which the id or -endpoint selects one: %s", argument,
		strings.Join(all, ", "))
}
