// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"gotest.tools/gotestsum/testjson"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// judge reads the events of a run of tests with its reruns, prints what there is to know of it, and returns an error
// for what gotestsum does not count as a failure: a package that fails though each of its tests passes, a run without
// a test, and, if noSkips says so, a skip that is not testsupport.Long's.
func judge(w io.Writer, events io.Reader, noSkips bool) error {
	packages := &packageFailures{w: w, failed: map[string]int{}}
	tests, err := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: events, Handler: packages})
	if err != nil {
		return fmt.Errorf("failed to read the events of the tests: %w", err)
	}
	failed, flaky := failures(tests)
	printTests(w, tests, "Failed", "FAIL", failed)
	printTests(w, tests, "Flaky: failed, and passed when run again alone", "FLAKY", flaky)
	bad := printSkips(w, tests, noSkips)

	problems := packages.problems
	for _, test := range failed {
		problems = append(problems, fmt.Errorf("failed: %s", name(test)))
	}
	if bad > 0 {
		problems = append(problems, fmt.Errorf("skipped tests that CI has to run: %d", bad))
	}
	if tests.Total() == len(tests.Skipped()) {
		problems = append(problems, errors.New("no test ran"))
	}
	return errors.Join(problems...)
}

// failures are the tests that failed and passed in no later run, and those that did pass then, each by its first
// failure. A test whose subtests failed is left to them.
func failures(tests *testjson.Execution) (failed, flaky []testjson.TestCase) {
	seen := map[string]bool{}
	for _, test := range testjson.FilterFailedUnique(tests.Failed()) {
		id := test.Package + " " + test.Test.Name()
		if seen[id] {
			continue
		}
		seen[id] = true
		isThis := func(other testjson.TestCase) bool { return other.Test == test.Test }
		passed := slices.ContainsFunc(tests.Package(test.Package).Passed, isThis)
		if passed {
			flaky = append(flaky, test)
		} else {
			failed = append(failed, test)
		}
	}
	return failed, flaky
}

func printTests(w io.Writer, tests *testjson.Execution, heading, word string, list []testjson.TestCase) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, "\n=== %s\n", heading)
	for _, test := range list {
		fmt.Fprintf(w, "=== %s: %s (%s)\n", word, name(test), testjson.FormatDurationAsSeconds(test.Elapsed, 2))
		for _, line := range tests.OutputLines(test) {
			framing := strings.HasPrefix(line, "=== ") || strings.HasPrefix(strings.TrimSpace(line), "--- FAIL: ")
			if !framing {
				fmt.Fprint(w, line)
			}
		}
	}
}

// name is that of a package and a test.
func name(test testjson.TestCase) string {
	pkg := testjson.RelativePackagePath(test.Package)
	if test.Test.Name() == "" {
		return pkg + " (the package, beside its tests)"
	}
	return pkg + " " + test.Test.Name()
}

// printSkips prints how many tests are left to test:all, and how many were skipped for which other reason; or each of
// these, if noSkips says so. It returns how many skips are not allowed.
func printSkips(w io.Writer, tests *testjson.Execution, noSkips bool) (bad int) {
	long := 0
	reasons := map[string]int{}
	for _, test := range tests.Skipped() {
		reason := skipReason(tests.OutputLines(test))
		switch {
		case strings.HasPrefix(reason, testsupport.LongSkip):
			long++
		case noSkips:
			bad++
			fmt.Fprintf(w, "\nskipped, though CI has what it needs: %s %s: %s\n", test.Package, test.Test, reason)
		default:
			reasons[reason]++
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(w, "%d skipped: %s\n", reasons[reason], reason)
	}
	if long > 0 {
		fmt.Fprintf(w, "%d left to test:all\n", long)
	}
	return bad
}

// skipReason finds in the output of a test what it was skipped for: "    file.go:12: reason".
func skipReason(lines []string) string {
	for _, line := range slices.Backward(lines) {
		_, reason, found := strings.Cut(line, ".go:")
		_, reason, ok := strings.Cut(reason, ": ")
		if found && ok {
			return strings.TrimSpace(reason)
		}
	}
	return "without a reason"
}

// packageFailures is a testjson.EventHandler. It finds the packages that fail though no test of theirs does, as where
// TestMain does, or which do not compile. It also prints what a package writes after its tests, such as a table.
type packageFailures struct {
	w        io.Writer
	failed   map[string]int // tests of a package
	problems []error
}

func (p *packageFailures) Event(event testjson.TestEvent, tests *testjson.Execution) error {
	if !event.PackageEvent() {
		if event.Action == testjson.ActionFail {
			p.failed[event.Package]++
		}
		return nil
	}
	if !event.Action.IsTerminal() {
		return nil
	}
	var output strings.Builder
	err := tests.Package(event.Package).WriteOutputTo(&output, 0)
	if err != nil {
		return err
	}
	if event.Action == testjson.ActionFail && p.failed[event.Package] == 0 {
		p.problems = append(p.problems, fmt.Errorf("%s failed beside its tests:\n%s", event.Package, output.String()))
	}
	delete(p.failed, event.Package) // it may be run again
	_, table, _ := strings.Cut(output.String(), "PASS\n")
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "ok  \t") && !strings.HasPrefix(line, "coverage: ") { // the go command's
			fmt.Fprint(p.w, line)
		}
	}
	return nil
}

func (p *packageFailures) Err(string) error { return nil }
