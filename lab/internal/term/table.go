// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package term

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// Table writes rows in columns; the first row is the head. Line breaks in a cell become spaces, and an empty cell
// becomes a dash. The last column is for messages: it continues on the next line if it is wider than w allows.
func Table(w io.Writer, rows ...[]string) error {
	const gap, least = 2, 40 // least: the minimum of the last column
	var cells [][]string
	var widths []int
	for _, row := range rows {
		line := make([]string, len(row))
		for i, c := range row {
			line[i] = strings.Join(strings.Fields(c), " ")
			if line[i] == "" {
				line[i] = "-"
			}
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(line[i]))
		}
		cells = append(cells, line)
	}
	rest := Columns(w)
	for _, n := range widths[:max(len(widths)-1, 0)] {
		rest -= n + gap
	}
	tw := tabwriter.NewWriter(w, 0, 4, gap, ' ', 0)
	for _, line := range cells {
		last := len(line) - 1
		for i, part := range strings.Split(Wrap(line[last], max(rest, least), "  "), "\n") {
			if i == 0 {
				fmt.Fprintln(tw, strings.Join(append(line[:last:last], part), "\t"))
				continue
			}
			fmt.Fprintln(tw, strings.Repeat("\t", last)+part)
		}
	}
	return tw.Flush()
}
