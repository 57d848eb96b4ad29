// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// run is a run on an endpoint.
type run struct {
	Endpoint string `json:"endpoint"`
	driver.Names
	shim.Run
}

func list(ctx context.Context, argv []string) error {
	s, _, err := open(plugin.Usage{
		Command: "list", About: "Shows what the hosts record of the runs of tasks there. Nothing is changed.",
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
		return cmp.Or(printJSON(all), problems)
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ENDPOINT\tID\tRUN\tSTATE\tOWNER\tNODE\tEPOCH\tFOLLOWED")
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.Endpoint, short(r.TaskID), r.label(),
			plain.Line(string(r.State), 20), short(r.Owner.AllocID), short(cmp.Or(r.Owner.NodeID, "-")), r.Epoch, r.followed())
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

func short(id string) string { return fmt.Sprintf("%.8s", plain.Line(id, 0)) }

// followed is whether somebody follows the run, and otherwise what becomes of it.
func (r run) followed() string {
	alone := r.Alone.Round(time.Second)
	switch {
	case r.Followed:
		return "yes"
	case r.Ending:
		return "no: the host ends it"
	case r.State == shim.Told:
		return "no: it has ended, and Nomad has its exit"
	case r.OrphanTimeout == 0:
		return fmt.Sprintf("not for %v, without an orphan_timeout", alone)
	}
	return fmt.Sprintf("not for %v, until its orphan_timeout of %v", alone, r.OrphanTimeout)
}

// stopTime is how long a host may take to end a run.
const stopTime = time.Minute

func stop(ctx context.Context, argv []string) error {
	s, argument, err := open(plugin.Usage{
		Command: "stop", Arguments: "RUN",
		About: "Kills the processes of a run that no allocation follows, and removes what the host has of it.\n" +
			"RUN is as list shows it, or the beginning of its task's id. A run is ended when nobody has followed\n" +
			"it for 15 s: until then its node may come back.",
	}, argv)
	if err != nil {
		return err
	}
	for _, e := range s.endpoints {
		defer e.host.Close()
	}
	problems := s.look(ctx, true)
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	e, r, err := s.find(argument)
	if err != nil {
		return errors.Join(problems, err)
	}
	for waits := false; ; waits = true {
		if r.Followed {
			return fmt.Errorf("its allocation has it: use nomad alloc stop %s", plain.Line(r.Owner.AllocID, 40))
		}
		if _, err := shim.End.On(ctx, e.link.Shim, &shim.EndRequest{TaskID: r.TaskID, Epoch: r.Epoch}); err != nil {
			return fmt.Errorf("endpoint %q can't end it: %s", e.Name, sentence(err))
		}
		if err := e.list(ctx); err != nil {
			return err
		}
		i := slices.IndexFunc(e.Runs, func(other run) bool { return other.TaskID == r.TaskID })
		if i < 0 {
			fmt.Printf("Ended %s on endpoint %q.\n", r.label(), e.Name)
			return nil
		}
		r = e.Runs[i]
		if !waits {
			fmt.Fprintln(os.Stderr, "Waiting until nobody has followed it for 15 s")
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
	return nil, run{}, fmt.Errorf("%q is several runs, of which the id selects one: %s", argument,
		strings.Join(all, ", "))
}
