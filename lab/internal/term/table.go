// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package term

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table writes rows in columns; the first row is the header. Line breaks in a cell become spaces, and an empty cell
// becomes a dash.
func Table(w io.Writer, rows ...[]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		var line []string
		for _, cell := range row {
			text := strings.Join(strings.Fields(cell), " ")
			if text == "" {
				text = "-"
			}
			line = append(line, text)
		}
		fmt.Fprintln(tw, strings.Join(line, "\t"))
	}
	return tw.Flush()
}
