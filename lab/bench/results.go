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
	rows   []*row   // of the table of both drivers
	notes  []string // printed below the table
	python *python  // nil: not selected
}

// quantity is one line of the table.
type quantity struct {
	name string
	show func(float64) string
	bar  float64                 // exec-lite needs at most 1/bar of what raw_exec needs; 0: no bar
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

func (r *row) cells() []string {
	of := r.of
	if of == nil {
		of = median
	}
	l := of(r.values[lite])
	if len(r.values[raw]) == 0 { // it has no plugin to recover
		return []string{r.name, r.show(l), "no plugin", "", ""}
	}
	other := of(r.values[raw])
	return []string{r.name, r.show(l), r.show(other), ratio(l, other), verdict(l, other, r.bar)}
}

func (r *results) print(w io.Writer) error {
	fmt.Fprintf(w, "\n%s.\n", machine())
	if len(r.rows) > 0 {
		table := [][]string{{"measured", lite, raw, "ratio", "bar"}}
		for _, row := range r.rows {
			table = append(table, row.cells())
		}
		fmt.Fprintf(w, "\n%s against %s, taking turns.\n\n", lite, raw)
		if err := term.Table(w, table...); err != nil {
			return err
		}
	}
	for _, note := range r.notes {
		fmt.Fprintf(w, "\n%s", term.Wrap(note, term.Width, "  "))
	}
	fmt.Fprintln(w)
	if r.python != nil {
		return r.python.print(w)
	}
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
