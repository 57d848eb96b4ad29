// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

var gcCommand = command{
	name: "gc", help: "end and remove the tasks that are no longer wanted, as the plugin does every minute",
	usage: "[-dry-run] [-config FILE] [ENDPOINT …]", most: 1000,
	about: "Ends and removes tasks that have had no owner for reap_after, and for which Nomad says that nobody will\n" +
		"come: their job is stopped or purged, or has fewer of them. Without that evidence a task is left alone.",
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		dry := f.Bool("dry-run", false, "print what would be done")
		return func(ctx context.Context, s *session, args []string) error {
			names, err := s.names(args)
			if err != nil {
				return err
			}
			var errs []error
			for _, name := range names {
				all, err := s.reap(ctx, name, *dry)
				if err != nil {
					errs = append(errs, fmt.Errorf("endpoint %s can't be used: %w", name, err))
				}
				for _, v := range all {
					did := "left"
					switch {
					case v.Err != nil:
						did = "failed"
						errs = append(errs, fmt.Errorf("failed to remove %s: %w", v.Record.Name, v.Err))
					case v.Gone && *dry:
						did = "to go"
					case v.Gone:
						did = "removed"
					}
					fmt.Fprintf(s.out, "%-7s  %s\n", did,
						plain.Line(fmt.Sprintf("%s at %s (%s): %s", v.Record.Name, name, v.Record.Key, v.Reason), 0))
				}
			}
			return errors.Join(errs...)
		}
	},
}
