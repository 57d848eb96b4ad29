// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// change is one of the commands that change an object.
type change struct {
	name, help, about string
	question          string
	arguments         string // besides the object
	do                func(ctx context.Context, s *session, t target, args []string) error
}

// target is the object that a person means.
type target struct {
	endpoint.Endpoint
	at     string // the endpoint's name
	record *endpoint.Record
}

var releaseCommand = change{
	name: "release", help: "take a task from its owner, so that the next start of it takes it over",
	about: "Takes the task from its owner, whoever that is, and gives it up: it runs on, and the next allocation that\n" +
		"Nomad starts for it takes it over. The former owner can do nothing with it any more, unless it lives and\n" +
		"Nomad still wants it: then it takes the task back. For a node that hangs or does not come back.",
	question: "Take it from its owner and give it up?",
	do: func(ctx context.Context, s *session, t target, _ []string) error {
		switch t.record.State {
		case endpoint.Exited:
			return errors.New("it has ended: its owner, or the next start of its task, tells Nomad how")
		case endpoint.Starting:
			return errors.New("it does not run yet: \"stop\" removes it when its owner is gone")
		}
		r, err := t.Take(ctx, t.record.Ref(), byHand("", t.record))
		if err != nil {
			return err
		}
		if err := t.Release(ctx, r.Ref(), endpoint.Mutable{}, "released by hand"); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%s is released: the next start of its task takes it over\n", r.Name)
		return nil
	},
}.command()

var adoptCommand = change{
	name: "adopt", help: "make a task that of an allocation, whatever Nomad says of its owner",
	about: "Takes the task from its owner, whoever that is, for the allocation with this id (in full): when Nomad\n" +
		"starts or restarts that allocation's task, it takes the running one over. The former owner can do\n" +
		"nothing with it any more.",
	question: "Take it from its owner?", arguments: " ALLOCATION",
	do: func(ctx context.Context, s *session, t target, args []string) error {
		if !allocation.MatchString(args[0]) {
			return fmt.Errorf("%q is not the whole id of an allocation: \"nomad alloc status -verbose\" shows it", args[0])
		}
		if err := s.all.Fits(ctx, t.record.Key, args[0]); err != nil {
			return err
		}
		r, err := t.Take(ctx, t.record.Ref(), byHand(args[0], t.record))
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%s belongs to allocation %s now, with epoch %d\n", r.Name, args[0], r.Epoch)
		return nil
	},
}.command()

var stopCommand = change{
	name: "stop", help: "end a task, and remove it if nobody owns it",
	about: "Ends the task by the signal and after the grace of its configuration. If it has an owner, that one reports\n" +
		"the exit to Nomad, which may start the task again: \"nomad job stop\" and \"nomad alloc stop\" are for\n" +
		"those. A task without an owner is removed.",
	question: "End it?",
	do: func(ctx context.Context, s *session, t target, _ []string) error {
		ref, unowned := t.record.Ref(), ownerless(t.record, s.config.Lease.Duration())
		if t.record.State == endpoint.Damaged {
			if err := t.Remove(ctx, ref); err != nil {
				return err
			}
			fmt.Fprintf(s.out, "%s is removed, with what still ran of it\n", t.record.Name)
			return nil
		}
		if unowned { // nobody else takes it over meanwhile
			r, err := t.Take(ctx, ref, byHand("", t.record))
			if err != nil {
				return err
			}
			ref = r.Ref()
		}
		r, err := t.Stop(ctx, ref, t.record.Kill.Signal, t.record.Kill.Grace, endpoint.ByHand)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%s has ended: %s\n", r.Name, plain.Line(exit(r.Exit), 0))
		if !unowned {
			return nil
		}
		if err := t.Remove(ctx, r.Ref()); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%s is removed\n", r.Name)
		return nil
	},
}.command()

var allocation = regexp.MustCompile("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

// ownerless reports whether an object has no owner, or one that is gone: it would have told Nomad of an exit by then.
func ownerless(r *endpoint.Record, lease time.Duration) bool {
	if r.State == endpoint.Exited {
		return r.GivenUp || r.Age > lease
	}
	return r.State == endpoint.Released || r.Lease < 0
}

// byHand is the owner that a person's command makes, for an allocation or, if alloc is empty, for none. It keeps the
// node of the former owner, by which the reaper tells the cluster of the object.
func byHand(alloc string, r *endpoint.Record) endpoint.Owner {
	host, _ := os.Hostname()
	id := fmt.Sprintf("by-hand/%s/%d", host, time.Now().UnixNano())
	return endpoint.Owner{Alloc: alloc, Node: r.Owner.Node, TaskID: id}
}

func (c change) command() command {
	n := 1 + strings.Count(c.arguments, " ")
	return command{
		name: c.name, help: c.help, usage: "[-epoch N] [-yes] [-config FILE] NAME" + c.arguments, least: n, most: n,
		about: c.about + "\n\nNAME is that of the list, or the beginning of it. The task is shown, and nothing is done\n" +
			"before an answer. If its epoch has changed meanwhile, it has another owner, and nothing is done.",
		options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
			epoch := f.Uint64("epoch", 0, "do it only if the task has this epoch; 0: any")
			yes := f.Bool("yes", false, "do not ask")
			return func(ctx context.Context, s *session, args []string) error {
				t, err := s.find(ctx, args[0])
				if err != nil {
					return err
				}
				if *epoch != 0 && *epoch != t.record.Epoch {
					return fmt.Errorf("%s has epoch %d, not %d: it has another owner, and nothing was done",
						t.record.Name, t.record.Epoch, *epoch)
				}
				fmt.Fprintf(s.err, "%s on endpoint %s\n  %s: %s for %s\n  %s\n", t.record.Name, t.at,
					plain.Line(t.record.Key.String(), 0), t.record.State, about(t.record.Age), plain.Line(owner(t.record), 0))
				if t.record.Busy {
					return fmt.Errorf("it could not be looked at, try again: %s", plain.Line(t.record.Reason, 0))
				}
				if t.record.State == endpoint.Damaged && c.name != "stop" {
					return errors.New("its record is damaged: it can only be stopped")
				}
				if err := s.confirm(ctx, *yes, c.question); err != nil {
					return err
				}
				return c.done(ctx, s, t, args[1:])
			}
		},
	}
}

func (c change) done(ctx context.Context, s *session, t target, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, t.record.Kill.Grace+patience)
	defer cancel()
	err := c.do(ctx, s, t, args)
	if errors.Is(err, endpoint.ErrEpoch) {
		return fmt.Errorf("%s has another owner meanwhile, and nothing was done: look at the list again", t.record.Name)
	}
	return err
}

// find looks on all endpoints for the object with this name, or the only one whose name begins with it.
// Endpoints that do not answer are left out.
func (s *session) find(ctx context.Context, name string) (target, error) {
	var found []target
	var away []string
	for _, l := range s.list(ctx, s.all.Names(), false) {
		if l.Problem != "" {
			away = append(away, fmt.Sprintf("endpoint %s can't be used: %s", l.Endpoint, plain.Line(l.Problem, 0)))
		}
		e, err := s.all.Get(l.Endpoint)
		if err != nil {
			continue
		}
		for _, o := range l.Tasks {
			if strings.HasPrefix(o.Name, name) {
				found = append(found, target{e, l.Endpoint, o.Record})
			}
			if o.Name == name {
				return found[len(found)-1], nil
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return target{}, errors.New(strings.Join(append([]string{fmt.Sprintf("no task is named %s", name)}, away...), "; "))
	}
	return target{}, fmt.Errorf("%d tasks have a name that begins with %s: write more of it", len(found), name)
}
