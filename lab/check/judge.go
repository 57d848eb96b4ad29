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

// skipLine matches a line that a test logs. The last such line of a skipped test is the reason for the skip.
var skipLine = regexp.MustCompile(`^\s*\S+\.go:\d+: (.+)`)

// judge reads the events of a test run and its reruns (go doc test2json), and prints how many tests were skipped, by
// reason. It returns an error for problems that gotestsum does not count as failures: a package that fails although its
// tests pass, a run without tests, and, if noSkips is set, a skip by any other means than testsupport.Long.
func judge(w io.Writer, events io.Reader, noSkips bool) error {
	var problems []error
	ran := 0
	reasons := map[string]string{} // each test's last log line, which is the reason if the test is skipped
	failed := map[string]bool{}    // packages in which a test has failed
	skipped := map[string]int{}    // number of skipped tests, by reason
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
				problems = append(problems, fmt.Errorf("%s failed outside its tests", e.Package))
			}
			delete(failed, e.Package) // a rerun of the package starts from zero
		case e.Test == "":
		case e.Action == "pass" || e.Action == "fail":
			ran++
			failed[e.Package] = failed[e.Package] || e.Action == "fail"
		case e.Action == "skip" && strings.HasPrefix(reasons[test], testsupport.LongSkip): // TestAll runs this test
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
