package e2e

import (
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
)

// faultReport collects what the rows of the fault table came to.
var faultReport report

type report struct {
	mu   sync.Mutex
	rows [][]string
}

func (r *report) add(cells ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, cells)
}

func (r *report) print(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rows) == 0 {
		return
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw)
	for _, cells := range append([][]string{faultColumns}, r.rows...) {
		for _, c := range cells {
			fmt.Fprint(tw, c, "\t")
		}
		fmt.Fprintln(tw)
	}
	tw.Flush()
}

var faultColumns = []string{"fault", "task goes on", "ends by code 7", "ends by signal 15", "runs out of memory", "output"}
