// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

var checkCommand = command{
	name: "check", help: "check the operator's file, and whether each class can be used",
	usage: "[FILE]", most: 1,
	about: "Checks the operator's file, and each class's file system. Nothing is changed.",
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
		fmt.Fprintf(s.out, "class %s (%s, %s): ", c.label, c.Backend, c.Root)
		space, err := c.engine.Space(ctx)
		if problem := c.engine.Check(ctx); problem != nil {
			err = problem
		}
		if err != nil {
			bad++
			fmt.Fprintf(s.out, "can't be used: %v\n", err)
			continue
		}
		fmt.Fprintf(s.out, "can be used, %s of %s free\n", size(space.Free), size(space.Size))
		fmt.Fprintf(s.out, "  volumes of %s to %s, %s\n", c.MinCapacity, c.MaxCapacity, c.fate())
		if c.Slots != nil {
			fmt.Fprintf(s.out, "  slots: %d of %s, device \"%s/dataset/%s\"\n", c.Slots.Count, c.Slots.Capacity, c.Backend,
				c.label)
			if all := int64(c.Slots.Count) * c.Slots.Capacity.Bytes(); all > space.Size {
				fmt.Fprintf(s.out, "  note: all slots together are %s, which is more than the file system has\n", size(all))
			}
		}
	}
	if bad > 0 {
		return fmt.Errorf("classes that can't be used: %d of %d", bad, len(classes))
	}
	return nil
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
