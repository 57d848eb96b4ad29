// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
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

// check returns an error if a class can't be used.
func (s *session) check(ctx context.Context) error {
	classes, err := s.classes()
	if err != nil {
		var problems schema.Problems
		if errors.As(err, &problems) && len(problems) > 1 {
			for _, p := range problems {
				fmt.Fprintln(s.out, p)
			}
			return fmt.Errorf("%s has %d mistakes", s.file, len(problems))
		}
		return err
	}
	fmt.Fprintf(s.out, "%s is valid.\n", s.file)
	if len(classes) == 0 {
		fmt.Fprintln(s.out, "It has no class, so there is nothing that a job could ask for.")
	}
	bad := 0
	for _, c := range classes {
		fmt.Fprintf(s.out, "class %s (%s): ", c.label, c.Root)
		look, err := c.engine.Look(ctx)
		if err = cmp.Or(err, look.Problem); err != nil {
			bad++
			fmt.Fprintf(s.out, "can't be used: %s\n", plain.Line(err.Error(), 0))
			continue
		}
		space := look.Space
		fmt.Fprintf(s.out, "can be used, %s of %s free\n", size(space.Free), size(space.Size))
		fmt.Fprintf(s.out, "  volumes of %s to %s, %s\n", c.MinCapacity, c.MaxCapacity, c.fate())
		if c.Slots != nil {
			fmt.Fprintf(s.out, "  slots: %d of %s, device \"zfs/dataset/%s\"\n", c.Slots.Count, c.Slots.Capacity, c.label)
			if all := int64(c.Slots.Count) * c.Slots.Capacity.Bytes(); all > space.Size {
				fmt.Fprintf(s.out, "  note: all slots together are %s, which is more than the file system has\n", size(all))
			}
		}
		for _, note := range c.notes(look, time.Now()) {
			fmt.Fprintf(s.out, "  note: %s\n", note)
		}
	}
	if bad > 0 {
		return fmt.Errorf("classes that can't be used: %d of %d", bad, len(classes))
	}
	return nil
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
		expires, err := time.Parse(time.RFC3339, d.Tags[engine.Expires])
		switch state(d) {
		case "trash":
			if d.Tags[engine.Expires] != "" && (err != nil || now.After(expires.Add(late))) {
				note("%s should have left the trash at %s: does the device plugin run?", trashName(f), d.Tags[engine.Expires])
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
