package check

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// event is one line of `go test -json` (go doc test2json, and build output).
type event struct {
	Action     string
	Package    string
	ImportPath string // with build-output
	Test       string
	Elapsed    float64
	Output     string
}

// report turns events into a line a package, the output of what failed, and counts.
type report struct {
	w       io.Writer
	allowed []skip

	passed, failed, skipped int
	problems                []string
	output                  map[string]*strings.Builder // by package and test, while it runs
	counts                  map[string]int              // passed tests by package
}

func newReport(w io.Writer, allowed []skip) *report {
	return &report{w: w, allowed: allowed, output: map[string]*strings.Builder{}, counts: map[string]int{}}
}

func (r *report) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// ran is how many tests ran to an end.
func (r *report) ran() int { return r.passed + r.failed }

func (r *report) healthy() bool { return r.failed == 0 && len(r.problems) == 0 }

// read takes events until the end of in. A line that is not an event is shown.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Action == "" {
			fmt.Fprintln(r.w, lines.Text())
			continue
		}
		r.take(e)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("failed to read test events: %w", err)
	}
	return nil
}

func (r *report) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if r.output[key] == nil {
			r.output[key] = &strings.Builder{}
		}
		r.output[key].WriteString(e.Output)
	case "build-output":
		fmt.Fprint(r.w, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.pkg(e, r.text(key))
		} else {
			r.test(e, r.text(key))
		}
		delete(r.output, key)
	}
}

func (r *report) text(key string) string {
	if b := r.output[key]; b != nil {
		return b.String()
	}
	return ""
}

func (r *report) test(e event, out string) {
	switch e.Action {
	case "pass":
		r.passed++
		r.counts[e.Package]++
	case "fail":
		r.failed++
		fmt.Fprintf(r.w, "FAIL %s %s\n%s", e.Package, e.Test, out)
	case "skip":
		r.skipped++
		why := reason(out)
		if allows(r.allowed, e.Package, e.Test) {
			fmt.Fprintf(r.w, "skip %s %s: %s\n", e.Package, e.Test, why)
			return
		}
		r.problem("unexpected skip of %s %s: %s", e.Package, e.Test, why)
	}
}

// leftOut tells of a package that is not run.
func (r *report) leftOut(pkg, why string) {
	r.skipped++
	fmt.Fprintf(r.w, "skip %s: %s\n", pkg, why)
}

// pkg ends a package. One that fails without a failed test did not build, crashed
// or ran out of time, and its own output says which.
func (r *report) pkg(e event, out string) {
	switch e.Action {
	case "pass":
		fmt.Fprint(r.w, own(out))
		fmt.Fprintf(r.w, "ok   %s  %d tests  %.1f s\n", e.Package, r.counts[e.Package], e.Elapsed)
	case "fail":
		fmt.Fprint(r.w, own(out))
		fmt.Fprintf(r.w, "FAIL %s\n", e.Package)
		if !strings.HasPrefix(strings.TrimSpace(out), "FAIL") || strings.Contains(out, "panic") || strings.Contains(out, "build failed") {
			fmt.Fprint(r.w, out)
		}
		for key, b := range r.output { // a test that was running when it crashed
			if pkg, test, _ := strings.Cut(key, " "); pkg == e.Package && test != "" {
				fmt.Fprintf(r.w, "%s did not end:\n%s", test, b)
				delete(r.output, key)
			}
		}
		r.problem("package %s failed", e.Package)
	}
}

// own is what a package says beside its tests, such as a table of results, when it
// has passed or failed them.
func own(out string) string {
	_, said, _ := strings.Cut("\n"+out, "\nPASS\n")
	if said == "" {
		_, said, _ = strings.Cut("\n"+out, "\nFAIL\n")
	}
	var b strings.Builder
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "FAIL\t") || line == "FAIL\n" || strings.HasPrefix(line, "exit status ") {
			continue // the go command's
		}
		b.WriteString(line)
	}
	return b.String()
}

// reason is the message of a skip: the last line that the test printed itself.
func reason(out string) string {
	why := "no reason given"
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			why = line
		}
	}
	return why
}

// finish prints the problems and, as the last line, the counts.
func (r *report) finish() error {
	fmt.Fprintln(r.w)
	for _, p := range r.problems {
		fmt.Fprintln(r.w, p)
	}
	fmt.Fprintf(r.w, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	if !r.healthy() {
		return errors.New("the tests failed")
	}
	return nil
}
