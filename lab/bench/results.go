// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

// results are what one run measured; a part that was not asked for is nil.
type results struct {
	jobs   *jobs
	starts *starts
	cpu    *cpu
	crowd  *crowd
	python *python
	took   time.Duration
}

// The bars: exec-lite needs at most this part of what raw_exec needs.
const (
	memoryBar = 300
	startBar  = 6
	jobBar    = 2.5
	purgeBar  = 1
)

// comparison is the table of both drivers.
type comparison struct{ rows [][]string }

// add compares two numbers; 0 is no bar.
func (c *comparison) add(name string, show func(float64) string, l, r, bar float64) {
	c.rows = append(c.rows, []string{name, show(l), show(r), ratio(l, r), verdict(l, r, bar)})
}

func (r results) print(w io.Writer, o options) error {
	c := &comparison{rows: [][]string{{"", lite, raw, "ratio", "bar"}}}
	if j := r.jobs; j != nil {
		row := func(name string, show func(float64) string, bar float64, of func(usage) int) {
			c.add(name, show, j.perTask(lite, of), j.perTask(raw, of), bar)
		}
		helpers := func(i int) func(usage) int { return func(u usage) int { return u.helpers[i] } }
		row("helper memory a task (PSS), median of rounds", kB, memoryBar, helpers(pss))
		c.add("  in the first round, the plugin being new", kB,
			j.rounds(lite, helpers(pss))[0], j.rounds(raw, helpers(pss))[0], 0)
		row("  of it heaps and stacks", kB, 0, helpers(anon))
		row("  private dirty", kB, 0, helpers(private))
		row("  page tables, not in PSS", kB, 0, helpers(tables))
		row("  threads", number, 0, helpers(threads))
		row("  growth of the agent (PSS)", kB, 0, func(u usage) int { return u.agent[pss] })
	}
	if s := r.starts; s != nil {
		c.add("StartTask to first instruction, median", millis, median(s.first[lite], nanos), median(s.first[raw], nanos),
			startBar)
		c.add("  99th percentile", millis, nanos(percentile(s.first[lite], 99)), nanos(percentile(s.first[raw], 99)), 0)
		c.add("  StartTask itself, median", millis, median(s.call[lite], nanos), median(s.call[raw], nanos), 0)
	}
	if j := r.jobs; j != nil {
		c.add(fmt.Sprintf("job of %d tasks, until all run, median", j.tasks), millis,
			median(j.took[lite], nanos), median(j.took[raw], nanos), jobBar)
	}
	if u := r.cpu; u != nil {
		c.add(fmt.Sprintf("processor of helpers, %d tasks at 1 line/s", u.tasks), percent, u.helpers[lite], u.helpers[raw], 0)
		c.add("  and of the agent", percent, u.agent[lite], u.agent[raw], 0)
	}
	if r.crowd != nil {
		r.crowd.compare(c)
	}

	fmt.Fprintf(w, "\n%s.\n", machine())
	if len(c.rows) > 1 {
		fmt.Fprintf(w, "\n%s against %s, on one agent, taking turns.\n\n", lite, raw)
		if err := table(w, c.rows); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if s := r.starts; s != nil {
		fmt.Fprintf(w, "The floor, a bare fork and exec of the same program: "+
			"median %s, 99th percentile %s; %d starts each.\n",
			ms(median(s.first[floor], self)), ms(percentile(s.first[floor], 99)), len(s.first[floor]))
	}
	if j := r.jobs; j != nil {
		for _, d := range both {
			fmt.Fprintf(w, "Processes with %d tasks of %s: %s.\n", j.tasks, d, counts(j.counts[d], d))
			fmt.Fprintf(w, "Rounds of %s: all run after %s; PSS of helpers with 1 and with %d tasks: %s.\n",
				d, each(j.took[d]), j.tasks, pairs(j, d))
		}
	}
	if r.python != nil {
		if err := r.python.print(w); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "%s. Again: go tool mage bench%s\n", term.Short(r.took), flags(o))
	return nil
}

func flags(o options) string {
	if o.starts == quick.starts {
		return " (this was: go run ./lab/bench -quick)"
	}
	return ""
}

func table(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return tw.Flush()
}

// counts says which processes there were beside the agent and the tasks.
func counts(n map[role]int, driver string) string {
	var s []string
	for _, r := range []role{isPlugin, isSupervisor, isCollector, isExecutor, isLogmon, isOther} {
		if r.helps(driver) && (n[r] > 0 || r != isOther) {
			s = append(s, fmt.Sprintf("%s %d", r, n[r]))
		}
	}
	return strings.Join(s, ", ")
}

func pairs(j *jobs, d string) string {
	var s []string
	for i := range j.all[d] {
		one, all := j.one[d][i], j.all[d][i]
		text := fmt.Sprintf("%d and %d kB", one.helpers[pss], all.helpers[pss])
		if all.plugin > 0 {
			text += fmt.Sprintf(" (plugin %d and %d)", one.plugin, all.plugin)
		}
		s = append(s, text)
	}
	return strings.Join(s, ", ")
}

func each(list []time.Duration) string {
	var s []string
	for _, d := range list {
		s = append(s, ms(d))
	}
	return strings.Join(s, ", ")
}

// machine describes where it ran, as far as it matters for reading the numbers.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail
	release := unix.ByteSliceToString(u.Release[:])
	if p := strings.SplitN(release, ".", 3); len(p) == 3 {
		release = p[0] + "." + p[1]
	}
	version := "v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		version = "v2"
	}
	return fmt.Sprintf("%d cores, %s, Linux %s, cgroup %s", runtime.NumCPU(), runtime.GOARCH, release, version)
}

// verdict compares with a bar; 0 is none.
func verdict(l, r, bar float64) string {
	if bar == 0 {
		return ""
	}
	word := "PASS"
	if l*bar > r {
		word = "FAIL"
	}
	return fmt.Sprintf("%s (1/%g)", word, bar)
}

// ratio is l : r as 1/n. What was measured as nothing, or less, is within the noise.
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

func nanos(d time.Duration) float64 { return float64(d) }

func self(d time.Duration) time.Duration { return d }

// median of what of returns; of an even number the lower of the two in the middle.
func median[T any, N cmp.Ordered](list []T, of func(T) N) N {
	var n []N
	for _, t := range list {
		n = append(n, of(t))
	}
	slices.Sort(n)
	return n[(len(n)-1)/2]
}

// percentile by the nearest rank.
func percentile(list []time.Duration, p int) time.Duration {
	s := slices.Sorted(slices.Values(list))
	return s[(len(s)*p+99)/100-1]
}
