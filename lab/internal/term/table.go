package term

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table writes rows in columns; the first row is the head. Line breaks in a cell
// become spaces, and an empty cell a dash, so that a row stays a row.
func Table(w io.Writer, rows ...[]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, c := range row {
			cells[i] = strings.Join(strings.Fields(c), " ")
			if cells[i] == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}
