package e2e

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
)

// faultReport collects what the rows of the fault table came to.
var faultReport report

type report struct {
	mu   sync.Mutex
	rows [][]string
}

var faultColumns = []string{"agent", "fault", "task goes on", "ends by code 7", "ends by signal 15", "runs out of memory", "output"}

func (r *report) add(cells ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, cells)
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
	fmt.Fprintln(tw, "\nwhat Nomad tells after a fault, while which a task:")
	for _, cells := range append([][]string{faultColumns}, r.rows...) {
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	tw.Flush()
}
