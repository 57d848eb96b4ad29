// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// skipLine matches the line of a test's output that has the reason for a skip.
var skipLine = regexp.MustCompile(`^\s*\S+\.go:\d+: (.+)`)

// judge reads the events of a test run with its reruns (go doc test2json), and prints the skipped tests. It returns an
// error for problems that gotestsum does not count as failures: a package that fails although each of its tests passes,
// a run without a test, and, if noSkips is set, a skip by anything but testsupport.Long.
func judge(w io.Writer, events io.Reader, noSkips bool) error {
	var problems []error
	ran := 0
	reasons := map[string]string{} // by test: the last line that may be a reason
	failed := map[string]bool{}    // packages with a test that failed
	skipped := map[string]int{}    // by reason
	for decoder := json.NewDecoder(events); decoder.More(); {
		var e struct{ Action, Package, Test, Output string }
		err := decoder.Decode(&e)
		if err != nil {
			return fmt.Errorf("failed to read the test events: %w", err)
		}
		test := e.Package + " " + e.Test
		switch {
		case e.Action == "output":
			if line := skipLine.FindStringSubmatch(e.Output); line != nil {
				reasons[test] = line[1]
			}
		case e.Test == "" && e.Action == "fail":
			if !failed[e.Package] {
				problems = append(problems, fmt.Errorf("%s failed outside of its tests", e.Package))
			}
			delete(failed, e.Package) // events of a rerun of the package may follow
		case e.Test == "":
		case e.Action == "pass" || e.Action == "fail":
			ran++
			failed[e.Package] = failed[e.Package] || e.Action == "fail"
		case e.Action == "skip" && strings.HasPrefix(reasons[test], testsupport.LongSkip): // left to TestAll
		case e.Action == "skip" && noSkips:
			problems = append(problems, fmt.Errorf("%s was skipped, but CI must run it: %s", test, reasons[test]))
		case e.Action == "skip":
			skipped[reasons[test]]++
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Fprintf(w, "%d skipped: %s\n", skipped[reason], reason)
	}
	if ran == 0 {
		problems = append(problems, errors.New("no test ran"))
	}
	return errors.Join(problems...)
}
