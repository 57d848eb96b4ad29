// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// usbReport collects what was measured of the usb plugin.
var usbReport = report{
	title:   "the usb plugin under an agent, with simulated sticks:",
	columns: []string{"measured", "least", "median", "9 of 10", "most"},
}

type report struct {
	title   string
	columns []string

	mu   sync.Mutex // guards rows
	rows [][]string
}

func (r *report) add(cells ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, cells)
}

// spread adds a row with the distribution of some durations.
func (r *report) spread(what string, d []time.Duration) {
	slices.Sort(d)
	at := func(part float64) string { return d[int(part*float64(len(d)-1))].Round(time.Millisecond).String() }
	r.add(fmt.Sprintf("%s (%d times)", what, len(d)), at(0), at(0.5), at(0.9), at(1))
}

// print shows the rows, those of an agent together.
func (r *report) print(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rows) == 0 {
		return
	}
	slices.SortStableFunc(r.rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\n"+r.title)
	for _, cells := range append([][]string{r.columns}, r.rows...) {
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	tw.Flush()
}
