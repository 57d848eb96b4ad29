// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/volume"
)

var checkCommand = command{
	name: "check", help: "check the operator's file, and whether each class can be used",
	usage: "[FILE]", most: 1,
	about: `Checks the operator's file, each class's pool, and what the datasets there need of a
person. Nothing is changed.`,
	options: func(*flag.FlagSet) func(context.Context, *session, []string) error {
		return func(ctx context.Context, s *session, args []string) error {
			if len(args) == 1 {
				s.file = args[0]
			}
			return s.check(ctx)
		}
	},
}

// checked is what is wrong, as JSON.
type checked struct {
	File     string         `json:"file"`
	Mistakes []string       `json:"mistakes"` // of the file; with one there are no classes
	Classes  []checkedClass `json:"classes"`
}

type checkedClass struct {
	Class   string   `json:"class"`
	Root    string   `json:"root"`
	Problem string   `json:"problem,omitempty"` // why it can't be used
	Size    int64    `json:"size"`              // of the file system
	Free    int64    `json:"free"`
	Notes   []string `json:"notes"`

	class class
}

// check returns an error if the file has a mistake or a class can't be used.
func (s *session) check(ctx context.Context) error {
	all := checked{File: s.file, Mistakes: []string{}, Classes: []checkedClass{}}
	classes, failure := s.classes()
	var problems schema.Problems
	switch {
	case errors.As(failure, &problems) && len(problems) > 1:
		for _, p := range problems {
			all.Mistakes = append(all.Mistakes, p.Error())
		}
		failure = fmt.Errorf("%s has %d mistakes", s.file, len(problems))
	case failure != nil:
		all.Mistakes = append(all.Mistakes, failure.Error())
	}
	bad := 0
	for _, c := range classes {
		found := c.check(ctx)
		all.Classes = append(all.Classes, found)
		if found.Problem != "" {
			bad++
		}
	}
	if bad > 0 {
		failure = fmt.Errorf("classes that can't be used: %d of %d", bad, len(classes))
	}
	return errors.Join(failure, s.answer(all, all.write))
}

// check looks at the class and its datasets.
func (c class) check(ctx context.Context) checkedClass {
	found := checkedClass{Class: c.label, Root: c.Root, Notes: []string{}, class: c}
	look, err := c.engine.Look(ctx)
	err = cmp.Or(err, look.Problem)
	if err != nil {
		found.Problem = err.Error()
		return found
	}
	found.Size, found.Free = look.Space.Size, look.Space.Free
	if c.Slots != nil {
		all := int64(c.Slots.Count) * c.Slots.Capacity.Bytes()
		if all > found.Size {
			found.Notes = append(found.Notes, "all slots together are "+size(all)+", which is more than the file system has")
		}
	}
	found.Notes = append(found.Notes, c.notes(look, time.Now())...)
	return found
}

// write is the answer for a person.
func (all checked) write(w io.Writer) {
	if len(all.Mistakes) > 1 {
		for _, mistake := range all.Mistakes {
			fmt.Fprintln(w, mistake)
		}
	}
	if len(all.Mistakes) > 0 {
		return // a single one is the error
	}
	fmt.Fprintf(w, "%s is valid.\n", all.File)
	if len(all.Classes) == 0 {
		fmt.Fprintln(w, "It has no class, so there is nothing that a job could ask for.")
	}
	for _, found := range all.Classes {
		c := found.class
		fmt.Fprintf(w, "class %s (%s): ", c.label, c.Root)
		if found.Problem != "" {
			fmt.Fprintf(w, "can't be used: %s\n", plain.Line(found.Problem, 0))
			continue
		}
		fmt.Fprintf(w, "can be used, %s of %s free\n", size(found.Free), size(found.Size))
		fmt.Fprintf(w, "  volumes of %s to %s, %s\n", c.MinCapacity, c.MaxCapacity, c.fate())
		if c.Slots != nil {
			fmt.Fprintf(w, "  slots: %d of %s, device \"zfs/dataset/%s\"\n", c.Slots.Count, c.Slots.Capacity, c.label)
		}
		for _, note := range found.Notes {
			fmt.Fprintf(w, "  note: %s\n", note)
		}
	}
}

// late is how long the device plugin may take to do what is due.
const late = 10 * time.Minute

// notes are what a person should look after.
func (c class) notes(look engine.Look, now time.Time) (notes []string) {
	const least, most = 5, 95 // percent
	note := func(format string, args ...any) { notes = append(notes, plain.Line(fmt.Sprintf(format, args...), 0)) }
	if look.Space.Free < look.Space.Size/100*least {
		note("the file system is nearly full: empty the trash, remove snapshots, or add a disk")
	}
	for _, d := range look.Datasets {
		f := found{c, d}
		switch state(d) {
		case "trash":
			left, _, err := d.Left()
			trashed, timeErr := time.Parse(time.RFC3339, d.Tags[engine.Trashed])
			kept, keptErr := time.ParseDuration(d.Tags[engine.Kept])
			switch {
			case err != nil:
				note("%s stays in the trash, since it is not clear how long: %v", trashName(f), err)
			case timeErr != nil || keptErr != nil || now.Before(trashed.Add(kept+late)):
			case left == 0:
				note("%s is due and was not destroyed: the agent's log has the reason", trashName(f))
			default:
				note("%s is in the trash since %s, which keeps it for another %s: only the time counts in which the "+
					"device plugin runs", trashName(f), d.Tags[engine.Trashed], left)
			}
		case "waiting":
			note("dataset %s waits to become volume %s", d.Name, f.title())
		case "volume":
			if !volume.Recorded(d.Place) {
				note("volume %s has no record on this node, and no job can have it until it is adopted: adopt %s/%s", f, c.Root,
					d.Name)
			}
			if d.Limits.Snapshots > 0 && d.Usage.Snapshots > d.Limits.Snapshots/100*most {
				note("snapshots of volume %s have %s of the %s that they may have: with all of it used, nothing can be written",
					f, size(d.Usage.Snapshots), size(d.Limits.Snapshots))
			}
		}
	}
	return notes
}

// fate is what becomes of a volume that is deleted.
func (c class) fate() string {
	switch c.OnDelete {
	case "destroy":
		return "destroyed when they are deleted"
	case "retain":
		return "kept in the trash when they are deleted"
	}
	return fmt.Sprintf("in the trash for %s when they are deleted", c.TrashTTL)
}
