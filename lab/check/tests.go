// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"gotest.tools/gotestsum/testjson"
)

// Test runs the tests of a tier and prints a line for each package. It fails if a test or a
// build fails, if no test runs, and if a test is skipped without a reason in skips.txt.
func Test(ctx context.Context, root string, tier Tier) error {
	skips, err := skips()
	if err != nil {
		return err
	}
	tiers, err := tiers()
	if err != nil {
		return err
	}
	return (&runner{w: os.Stdout, root: root, skips: skips, tiers: tiers}).test(ctx, tier)
}

type runner struct {
	w            io.Writer
	root         string
	skips, tiers []rule

	format   testjson.EventFormatter
	tests    *testjson.Execution // of all go commands
	skipped  map[string]int      // by reason
	problems []string            // beside failed tests
}

func (r *runner) test(ctx context.Context, tier Tier) error {
	all, err := packages(ctx, r.root)
	if err != nil {
		return err
	}
	r.format = testjson.NewEventFormatter(r.w, "pkgname", testjson.FormatOptions{HideEmptyPackages: true})
	r.skipped = map[string]int{}
	all = slices.DeleteFunc(all, func(pkg string) bool {
		skip, found := find(r.skips, pkg, wholePackage)
		if found {
			r.skipped["no test of "+skip.pkg+": "+skip.why]++
		}
		return found
	})
	isE2E := func(pkg string) bool { return strings.Contains(pkg+"/", "/lab/e2e/") }
	for _, part := range []struct {
		name     string
		packages []string
		flags    []string
	}{
		// most of a test is waiting
		{"unit", slices.DeleteFunc(slices.Clone(all), isE2E), []string{"-p=4", "-timeout=20m"}},
		// one package at a time: each has several agents of its own
		{"end-to-end", slices.DeleteFunc(all, func(pkg string) bool { return !isE2E(pkg) }),
			[]string{"-p=1", "-count=1", "-timeout=40m"}},
	} {
		before := r.ran()
		fmt.Fprintf(r.w, "\n%s tests:\n", part.name)
		for _, s := range selections(tier, r.tiers, part.packages) {
			if err := r.goTest(ctx, s, part.flags...); err != nil {
				return err
			}
		}
		if r.ran() == before && tier == Main {
			r.problems = append(r.problems, "no "+part.name+" test ran")
		}
	}
	return r.verdict()
}

// ran is the number of tests that were not skipped.
func (r *runner) ran() int {
	if r.tests == nil {
		return 0
	}
	return r.tests.Total() - len(r.tests.Skipped())
}

// goTest runs one go command. A failed test is no error, but a go command that does not run is.
func (r *runner) goTest(ctx context.Context, s selection, flags ...string) error {
	if len(s.packages) == 0 {
		return nil
	}
	if s.env != "" {
		fmt.Fprintf(r.w, "with %s:\n", s.env)
	}
	// go vet has run (golangci-lint's govet); without a debugger's tables linking takes half the time
	args := slices.Concat([]string{"test", "-json", "-vet=off", "-ldflags=-s -w"}, flags, s.flags, s.packages)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env, cmd.Stderr = r.root, append(goEnv(ctx, r.root), s.env), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("failed to run go test: %w", err)
	}
	r.tests, err = testjson.ScanTestOutput(testjson.ScanConfig{
		Stdout: out, Handler: r, Execution: r.tests, Stop: func() { cmd.Process.Kill() }, IgnoreNonJSONOutputLines: true,
	})
	if err != nil {
		return errors.Join(fmt.Errorf("failed to read the tests' output: %w", err), cmd.Wait())
	}
	if err := cmd.Wait(); err != nil && len(r.tests.Failed()) == 0 {
		r.problems = append(r.problems, fmt.Sprintf("go test: %v", err))
	}
	return ctx.Err()
}

// Event is part of testjson.EventHandler. It prints what a package writes after its tests, such
// as a table of results, and the line of the package.
func (r *runner) Event(e testjson.TestEvent, tests *testjson.Execution) error {
	if e.PackageEvent() && e.Action.IsTerminal() {
		var out strings.Builder
		if err := tests.Package(e.Package).WriteOutputTo(&out, 0); err != nil {
			return err
		}
		_, table, _ := strings.Cut(out.String(), "PASS\n")
		for line := range strings.Lines(table) {
			if !strings.HasPrefix(line, "ok  \t") && !strings.HasPrefix(line, "coverage: ") { // the go command's
				fmt.Fprint(r.w, line)
			}
		}
	}
	return r.format.Format(e, tests)
}

// Err is part of testjson.EventHandler: a line that is no event.
func (r *runner) Err(line string) error {
	_, err := fmt.Fprintln(r.w, line)
	return err
}

// verdict prints what failed, a line for each reason of skipped tests, and the counts.
func (r *runner) verdict() error {
	if r.tests == nil {
		return errors.New("no test ran")
	}
	for _, t := range r.tests.Skipped() {
		if skip, found := find(r.skips, t.Package, t.Test.Name()); found {
			r.skipped[skip.word+": "+skip.why]++
		} else {
			why := strings.Join(r.tests.OutputLines(t), "")
			r.problems = append(r.problems, fmt.Sprintf("unexpected skip of %s %s:\n%s", t.Package, t.Test, why))
		}
	}
	testjson.PrintSummary(r.w, r.tests, testjson.SummarizeFailed|testjson.SummarizeErrors|testjson.SummarizeOutput)
	for _, why := range slices.Sorted(maps.Keys(r.skipped)) {
		fmt.Fprintf(r.w, "%d skipped, %s\n", r.skipped[why], why)
	}
	for _, p := range r.problems {
		fmt.Fprintln(r.w, p)
	}
	if len(r.problems)+len(r.tests.Failed()) > 0 {
		return errors.New("the tests failed")
	}
	return nil
}
