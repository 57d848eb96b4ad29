// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

// results are the measurements of one run.
type results struct {
	left, right string // the sides of the table, in whose rows the bars are for the left one; empty: lite and raw

	rows   []*row   // of the table of both drivers
	notes  []string // printed below the table
	python *python  // nil: not selected

	remotes []*results // with tables of their own
}

func (r *results) sides() (left, right string) { return cmp.Or(r.left, lite), cmp.Or(r.right, raw) }

// quantity is one line of the table.
type quantity struct {
	name string
	show func(float64) string
	bar  float64                 // the left side needs at most 1/bar of what the right one needs; 0: no bar
	of   func([]float64) float64 // which value to show; nil: the median
}

// row is a quantity with its values by driver, in the order of measurement.
type row struct {
	quantity
	values map[string][]float64
}

// add adds a value to the rows of these quantities.
func (r *results) add(driver string, value float64, quantities ...quantity) {
	for _, q := range quantities {
		i := slices.IndexFunc(r.rows, func(row *row) bool { return row.name == q.name })
		if i < 0 {
			i = len(r.rows)
			r.rows = append(r.rows, &row{q, map[string][]float64{}})
		}
		r.rows[i].values[driver] = append(r.rows[i].values[driver], value)
	}
}

func (r *results) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

func (r *results) cells(of *row) []string {
	pick := of.of
	if pick == nil {
		pick = median
	}
	left, right := r.sides()
	l := pick(of.values[left])
	if len(of.values[right]) == 0 { // raw_exec has no plugin to recover
		return []string{of.name, of.show(l), "no plugin", "", ""}
	}
	other := pick(of.values[right])
	return []string{of.name, of.show(l), of.show(other), ratio(l, other), verdict(l, other, of.bar)}
}

func (r *results) print(w io.Writer) error {
	fmt.Fprintf(w, "\n%s.\n", machine())
	if err := r.table(w); err != nil {
		return err
	}
	for _, more := range r.remotes {
		if err := more.table(w); err != nil {
			return err
		}
	}
	if r.python != nil {
		return r.python.print(w)
	}
	return nil
}

// table prints the rows and the notes.
func (r *results) table(w io.Writer) error {
	if len(r.rows) > 0 {
		left, right := r.sides()
		table := [][]string{{"measured", left, right, "ratio", "bar"}}
		for _, row := range r.rows {
			table = append(table, r.cells(row))
		}
		fmt.Fprintf(w, "\n%s against %s, taking turns.\n\n", left, right)
		if err := term.Table(w, table...); err != nil {
			return err
		}
	}
	for _, note := range r.notes {
		fmt.Fprintf(w, "\n%s", term.Wrap(note, term.Width, "  "))
	}
	fmt.Fprintln(w)
	return nil
}

// machine describes the machine as far as it matters for the numbers.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail
	release := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	return fmt.Sprintf("%d cores, %s, Linux %s, cgroup %s", runtime.NumCPU(), runtime.GOARCH,
		strings.Join(release[:min(2, len(release))], "."), []string{"off", "v1", "v2"}[cgroupslib.GetMode()])
}

// verdict compares with a bar; 0 is none.
func verdict(l, r, bar float64) string {
	if bar == 0 {
		return ""
	}
	return fmt.Sprintf("%s (1/%g)", word(l*bar <= r), bar)
}

func word(met bool) string {
	if met {
		return "PASS"
	}
	return "FAIL"
}

// ratio is l : r as 1/n. A measurement of zero or less is within the noise.
func ratio(l, r float64) string {
	switch {
	case r <= 0:
		return ""
	case l <= 0:
		return "~0"
	case r/l < 10:
		return fmt.Sprintf("1/%.1f", r/l)
	}
	return fmt.Sprintf("1/%.0f", r/l)
}

func number(f float64) string {
	if f > -100 && f < 100 {
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

func kB(f float64) string { return number(f) + " kB" }

func ms(d time.Duration) string {
	if d >= 100*time.Millisecond {
		return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

// millis shows nanoseconds.
func millis(f float64) string { return ms(time.Duration(f)) }

func percent(f float64) string { return fmt.Sprintf("%.1f %% of a core", 100*f) }

// series is the same duration, measured again and again.
type series []time.Duration

func (s series) String() string {
	var list []string
	for _, d := range s {
		list = append(list, ms(d))
	}
	return strings.Join(list, ", ")
}

func first(list []float64) float64 { return list[0] }

// median of an even number of values is the lower of the two in the middle.
func median[T cmp.Ordered](list []T) T { return percentile(list, 50) }

func percentile99(list []float64) float64 { return percentile(list, 99) }

// percentile by the nearest rank.
func percentile[T cmp.Ordered](list []T, p int) T {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[(len(sorted)*p+99)/100-1]
}
