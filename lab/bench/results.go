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

func (r results) print(w io.Writer, o options) error {
	rows := [][]string{{"", lite, raw, "ratio", "bar"}} // the last column is text, the others are numbers
	add := func(name, l, r, ratio, bar string) { rows = append(rows, []string{name, l, r, ratio, bar}) }
	if j := r.jobs; j != nil {
		row := func(name, unit string, bar float64, of func(usage) int) {
			l, r := j.perTask(lite, of), j.perTask(raw, of)
			add(name, number(l)+unit, number(r)+unit, ratio(l, r), verdict(l, r, bar))
		}
		row("helper memory a task (PSS), median of rounds", " kB", memoryBar, pss)
		l, r := j.rounds(lite, pss)[0], j.rounds(raw, pss)[0]
		add("  in the first round, the plugin being new", number(l)+" kB", number(r)+" kB", ratio(l, r), "")
		row("  of it heaps and stacks", " kB", 0, func(u usage) int { return u.helpers.Anon })
		row("  private dirty", " kB", 0, func(u usage) int { return u.helpers.Private })
		row("  page tables, not in PSS", " kB", 0, func(u usage) int { return u.helpers.Tables })
		row("  threads", "", 0, func(u usage) int { return u.helpers.Threads })
		row("  growth of the agent (PSS)", " kB", 0, func(u usage) int { return u.agent.PSS })
	}
	if s := r.starts; s != nil {
		l, r := median(s.first[lite], self), median(s.first[raw], self)
		add("StartTask to first instruction, median", ms(l), ms(r), ratio(float64(l), float64(r)),
			verdict(float64(l), float64(r), startBar))
		l, r = percentile(s.first[lite], 99), percentile(s.first[raw], 99)
		add("  99th percentile", ms(l), ms(r), ratio(float64(l), float64(r)), "")
		l, r = median(s.call[lite], self), median(s.call[raw], self)
		add("  StartTask itself, median", ms(l), ms(r), ratio(float64(l), float64(r)), "")
	}
	if j := r.jobs; j != nil {
		l, r := median(j.took[lite], self), median(j.took[raw], self)
		add(fmt.Sprintf("job of %d tasks, until all run, median", j.tasks), ms(l), ms(r), ratio(float64(l), float64(r)),
			verdict(float64(l), float64(r), jobBar))
	}
	if c := r.cpu; c != nil {
		add(fmt.Sprintf("processor of helpers, %d tasks at 1 line/s", c.tasks), percent(c.helpers[lite]),
			percent(c.helpers[raw]), ratio(c.helpers[lite], c.helpers[raw]), "")
		add("  and of the agent", percent(c.agent[lite]), percent(c.agent[raw]), ratio(c.agent[lite], c.agent[raw]), "")
	}
	if r.crowd != nil {
		r.crowd.rows(add)
	}

	fmt.Fprintf(w, "\n%s.\n", machine())
	if len(rows) > 1 {
		fmt.Fprintf(w, "\n%s against %s, on one agent, taking turns.\n\n", lite, raw)
		if err := table(w, rows); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if s := r.starts; s != nil {
		fmt.Fprintf(w, "The floor, a bare fork and exec of the same program: "+
			"median %s, 99th percentile %s; %d starts each.\n", ms(median(s.first[floor], self)), ms(percentile(s.first[floor], 99)), len(s.first[floor]))
	}
	if j := r.jobs; j != nil {
		for _, d := range both {
			fmt.Fprintf(w, "Processes with %d tasks of %s: %s.\n", j.tasks, d, counts(j.counts[d], d))
		}
		for _, d := range both {
			fmt.Fprintf(w, "Rounds of %s: all run after %s; PSS of helpers with 1 and with %d tasks: %s.\n", d,
				each(j.took[d], ms), j.tasks, pairs(j, d))
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
		text := fmt.Sprintf("%d and %d kB", one.helpers.PSS, all.helpers.PSS)
		if all.plugin > 0 {
			text += fmt.Sprintf(" (plugin %d and %d)", one.plugin, all.plugin)
		}
		s = append(s, text)
	}
	return strings.Join(s, ", ")
}

func each(list []time.Duration, show func(time.Duration) string) string {
	var s []string
	for _, d := range list {
		s = append(s, show(d))
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

func ms(d time.Duration) string {
	if d >= 100*time.Millisecond {
		return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

func percent(f float64) string { return fmt.Sprintf("%.1f %% of a core", 100*f) }

func pss(u usage) int { return u.helpers.PSS }

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
