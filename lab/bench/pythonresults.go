// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

// The bars: with a cached environment a start takes at most this much longer than the bare
// interpreter, and a build takes at most this many times as long as by hand.
const (
	cachedBar = 50 * time.Millisecond
	coldBar   = 1.2
)

func (p *python) print(w io.Writer) error {
	floor := median(p.starts[bare])
	rows := [][]string{{"start", "median", "99th percentile", "more than bare", "ratio", "bar"}}
	for _, what := range []string{bare, asExec, noEnv, smallIn, largeIn} {
		m := median(p.starts[what])
		row := []string{what, ms(m), ms(percentile(p.starts[what], 99)), "", "", ""}
		if what != bare {
			row[3], row[4] = ms(m-floor), times(m, floor)
		}
		if what == smallIn || what == largeIn {
			row[5] = fmt.Sprintf("%s (%s more)", word(m-floor <= cachedBar), ms(cachedBar))
		}
		rows = append(rows, row)
	}
	fmt.Fprintf(w, "\npython: from StartTask until the first line of a script, %d starts each, taking turns.\n\n",
		len(p.starts[bare]))
	if err := term.Table(w, rows...); err != nil {
		return err
	}

	rows = [][]string{{"build", "python", "by hand", "ratio", "bar"}}
	for _, c := range p.cold {
		d, h, u, m := median(c.driver), median(c.hand), median(c.uncompiled), median(c.many)
		fastest, fastestHand := slices.Min(c.driver), slices.Min(c.hand)
		rows = append(rows,
			[]string{c.installer + ", cold start, median", ms(d), ms(h), times(d, h),
				fmt.Sprintf("%s (%g)", word(float64(d) <= coldBar*float64(h)), coldBar)},
			[]string{"– fastest round", ms(fastest), ms(fastestHand), times(fastest, fastestHand), ""},
			[]string{"– by hand without bytecode", "", ms(u), times(d, u), ""},
			[]string{fmt.Sprintf("– %d tasks at once, until the last began", manyTasks),
				ms(m), "", times(m, d) + " of one", ""})
	}
	fmt.Fprintf(w, "\nA new environment of %d packages with %d modules each, until the first line of a script that "+
		"needs it, %d rounds, taking turns, %s.\n\n",
		packages, modules, len(p.cold[0].driver), p.place)
	if err := term.Table(w, rows...); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, c := range p.cold {
		fmt.Fprintf(w, "Rounds with %s: python %s; by hand %s. Builds for %d tasks at once: %v.\n",
			c.installer, c.driver, c.hand, manyTasks, c.builds)
	}
	if p.noUV {
		fmt.Fprintf(w, "Left out: uv, since user %d can run neither that of $UV nor one on the PATH.\n", buildUser)
	}
	return nil
}

// times is d : of.
func times(d, of time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(of)) }
