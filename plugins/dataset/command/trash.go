// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

var trashCommand = command{
	name: "trash", help: "show, restore or empty what was deleted: trash list|restore|empty",
	usage: "list | restore NAME [-in-place] | empty [NAME …]", least: 1, most: 1000,
	about: `"list" shows what was deleted and is still there, and for how long.
"restore" takes a volume out of the trash, and prints the specification with which Nomad
has it again: trash restore NAME | nomad volume create -
"empty" destroys what is named, or all of it. It can't be undone.
NAME is what "list" shows, or a volume if only one is meant.`,
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		only := f.String("class", "", "of this class only")
		inPlace := f.Bool("in-place", false, "restore under the volume's own id, since Nomad still has the volume")
		return func(ctx context.Context, s *session, args []string) error {
			in, hidden, err := s.datasets(ctx, *only, func(f found) bool { return engine.InTrash(f.Name) })
			if err != nil {
				return err
			}
			switch names := args[1:]; {
			case args[0] == "list" && len(names) == 0:
				return errors.Join(s.listTrash(in), hidden)
			case args[0] == "restore" && len(names) == 1:
				d, err := inTrash(in, names[0], hidden)
				if err != nil {
					return err
				}
				return s.restore(ctx, d, *inPlace)
			case args[0] == "empty" && len(names) == 0:
				return errors.Join(s.empty(ctx, in), hidden)
			case args[0] == "empty":
				var chosen []found
				for _, name := range names {
					d, err := inTrash(in, name, hidden)
					if err != nil {
						return err
					}
					chosen = append(chosen, d)
				}
				return s.empty(ctx, chosen)
			}
			return errors.New("usage: trash list | restore NAME | empty [NAME …]")
		}
	},
}

// discarded is something in the trash, as JSON.
type discarded struct {
	Name      string `json:"name"`
	Class     string `json:"class"`
	Kind      string `json:"kind"` // volume or slot
	ID        string `json:"id"`
	Volume    string `json:"volume,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Used      int64  `json:"used"`
	Left      string `json:"left,omitempty"` // of its time, as "71h0m0s"; none: until it is emptied
}

func (s *session) listTrash(in []found) error {
	all := []discarded{}
	for _, d := range in {
		all = append(all, discarded{
			trashName(d), d.label, d.Tags[engine.Kind], d.id(), d.Tags[engine.Volume], d.Tags[engine.Namespace],
			d.Usage.Data + d.Usage.Snapshots, left(d.Dataset),
		})
	}
	if len(in) == 0 {
		s.say("The trash is empty.")
	}
	return s.answer(all, func(w io.Writer) { writeTrash(w, all) })
}

func writeTrash(w io.Writer, all []discarded) {
	if len(all) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tWAS\tCLASS\tUSED\tSTAYS")
	for _, d := range all {
		was := "slot " + printable(d.ID)
		if d.Kind == "volume" {
			was = "volume " + printable(d.Namespace+"/"+d.Volume)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", d.Name, was, d.Class, size(d.Used), lasts(d.Left))
	}
	_ = t.Flush() // as with other answers, what reads it may have gone
}

// trashName is the name by which a person calls something in the trash.
func trashName(d found) string { return engine.TrashLock(d.Name) }

// inTrash is what a person means: by its name in the trash, or as a volume.
func inTrash(in []found, argument string, hidden error) (found, error) {
	var volumes []found
	for _, d := range in {
		if trashName(d) == argument {
			return d, nil
		}
		if d.Tags[engine.Kind] == "volume" {
			volumes = append(volumes, d)
		}
	}
	volumes, err := meant(volumes, argument, hidden)
	switch {
	case err != nil:
		return found{}, err
	case len(volumes) == 0:
		return found{}, fmt.Errorf("the trash has no %q: see \"trash list\"", argument)
	case len(volumes) == 1:
		return volumes[0], nil
	}
	var names []string
	for _, d := range volumes {
		names = append(names, trashName(d))
	}
	return found{}, fmt.Errorf("%q was deleted more than once: name one of %s", argument, strings.Join(names, ", "))
}

// restore takes a volume out of the trash. Nomad has forgotten it, and so it waits for a new
// volume as if it was adopted.
func (s *session) restore(ctx context.Context, d found, inPlace bool) error {
	if d.Tags[engine.Kind] != "volume" {
		return fmt.Errorf("%s was the scratch of a task, and no task can have it again: copy its files from its dataset %s",
			trashName(d), d.Name)
	}
	id, _, _ := strings.Cut(trashName(d), ".")
	for _, key := range []string{engine.TrashLock(d.Name), id} {
		unlock, err := d.lock(ctx, key)
		if err != nil {
			return err
		}
		defer unlock()
	}
	var err error
	if d.Dataset, err = d.engine.Get(ctx, d.Name); err != nil { // another may have taken it meanwhile
		return fmt.Errorf("%s was not restored: %w", trashName(d), err)
	}
	tags := engine.Tags{engine.Adopt: newKey(d.Dataset)}
	if inPlace {
		tags = engine.Tags{engine.ID: id}
	}
	if _, err := d.engine.Restore(ctx, d.Dataset, tags); err != nil {
		return fmt.Errorf("%s was not restored: %w", trashName(d), err)
	}
	if inPlace {
		s.say("Volume %s (%s) is back. Restart the Nomad agent of this node if it does not list the volume.", d.title(), id)
		return s.answer(map[string]string{"volume": id}, func(io.Writer) {})
	}
	s.say("Volume %s is out of the trash. The specification is for \"nomad volume create -\".", d.title())
	d.Tags = d.Tags.With(tags)
	return s.specify(ctx, d)
}

func (s *session) empty(ctx context.Context, chosen []found) error {
	var failed error
	destroyed := []string{}
	for _, d := range chosen {
		err := d.destroyTrashed(ctx)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s stays: %w", trashName(d), err))
			continue
		}
		s.say("%s is destroyed.", trashName(d))
		destroyed = append(destroyed, trashName(d))
	}
	return errors.Join(failed, s.answer(map[string][]string{"destroyed": destroyed}, func(io.Writer) {}))
}

// formerMove is a tag of versions that moved volumes.
const formerMove = "moving"

func (f found) destroyTrashed(ctx context.Context) error {
	unlock, err := f.lock(ctx, engine.TrashLock(f.Name))
	if err != nil {
		return err
	}
	defer unlock()
	if f.Tags[formerMove] != "" {
		return errors.New("a former version was moving it to another node, and this may be all there is of it: destroy it " +
			"by zfs if it is not")
	}
	return f.engine.Destroy(ctx, f.Name)
}
