// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/plugins/python/environment"
)

var cacheUsage = plugin.Usage{
	Binary: "nomad-driver-python", Command: "cache", Arguments: "list | prune", Least: 1, Most: 1,
	About: "Lists the environments of the node's cache, or removes those that no task uses. The command\n" +
		"works without an agent. Run it where the agent runs, in the agent's container if it has one.",
}

// cacheCommand runs the command "cache". It is safe while agents use the cache: any number of processes can share it.
func cacheCommand(ctx context.Context, line []string, out io.Writer) error {
	flags := flag.NewFlagSet("cache", flag.ContinueOnError)
	dir := flags.String("dir", "", "the `directory` of the cache, if the plugin's config sets cache_dir")
	unused := flags.Duration("unused", 0, "prune only environments unused for this `time`, such as 24h")
	asJSON := flags.Bool("json", false, "print JSON, sizes in bytes")
	args, err := cacheUsage.Parse(flags, line, out)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"list", "prune"}, args[0]) {
		return fmt.Errorf("usage: cache %s", cacheUsage.Arguments)
	}
	if *dir, err = cacheDir(*dir); err != nil {
		return err
	}
	cache := environment.Open(environment.Config{Dir: *dir, MaxAge: max(*unused, time.Nanosecond)})
	all, err := cache.List()
	if err != nil {
		return err
	}
	if args[0] == "prune" {
		if err := cache.Tidy(ctx); err != nil {
			return err
		}
		left, err := cache.List()
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(e environment.Cached) bool {
			return slices.ContainsFunc(left, func(l environment.Cached) bool { return l.Dir == e.Dir })
		})
	}
	if *asJSON {
		return plain.JSON(out, all)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tUSED\tTASKS\tMB\tPACKAGES")
	for _, e := range all {
		fmt.Fprintf(w, "%s\t%s\t%d\t%.1f\t%s\n", e.ID, e.Used.Format(time.DateTime), len(e.Tasks), megabytes(e.Size),
			plain.Line(strings.Join(e.Packages, " "), 80))
	}
	return w.Flush()
}

func megabytes(size int64) float64 { return float64(size) / 1e6 }
