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
	problems []string            // what no failed test tells
}

func (r *runner) test(ctx context.Context, tier Tier) error {
	all, err := packages(ctx, r.root)
	if err != nil {
		return err
	}
	r.format = testjson.NewEventFormatter(r.w, "pkgname", testjson.FormatOptions{HideEmptyPackages: true})
	r.skipped = map[string]int{}
	var units, e2e []string
	for _, pkg := range all {
		switch skip, found := leftOut(r.skips, pkg); {
		case found:
			r.skipped["no test of "+skip.pkg+": "+skip.why]++
		case strings.Contains(pkg+"/", "/lab/e2e/"):
			e2e = append(e2e, pkg)
		default:
			units = append(units, pkg)
		}
	}
	for _, s := range selections(tier, r.tiers, units) {
		if err := r.goTest(ctx, s, "-p=4", "-timeout=20m"); err != nil { // most of a test is waiting
			return err
		}
	}
	if tier == Main && r.ran() == 0 {
		r.problems = append(r.problems, "no unit test ran")
	}
	before := r.ran()
	fmt.Fprintln(r.w, "\nend to end, on a real agent:")
	for _, s := range selections(tier, r.tiers, e2e) {
		// one package at a time: each has several agents of its own
		if err := r.goTest(ctx, s, "-p=1", "-count=1", "-timeout=40m"); err != nil {
			return err
		}
	}
	if r.ran() == before {
		r.problems = append(r.problems, "no end-to-end test ran")
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
	if len(s.env) > 0 {
		fmt.Fprintln(r.w, "\nwith", strings.Join(s.env, " ")+":")
	}
	// go vet has run (golangci-lint's govet); and without a debugger's tables linking takes half the time
	args := slices.Concat([]string{"test", "-json", "-vet=off", "-ldflags=-s -w"}, flags, s.flags, s.packages)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = r.root, append(goEnv(ctx, r.root), s.env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	errOut, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("failed to run go test: %w", err)
	}
	r.tests, err = testjson.ScanTestOutput(testjson.ScanConfig{
		Stdout: out, Stderr: errOut, Handler: r, Execution: r.tests, Stop: func() { cmd.Process.Kill() },
		IgnoreNonJSONOutputLines: true,
	})
	if err != nil {
		return errors.Join(fmt.Errorf("failed to read the tests' output: %w", err), cmd.Wait())
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if len(r.tests.Failed()) == 0 {
			r.problems = append(r.problems, fmt.Sprintf("go test: %v", err))
		}
		err = nil
	}
	return err
}

// Event is part of testjson.EventHandler.
func (r *runner) Event(e testjson.TestEvent, tests *testjson.Execution) error {
	if e.PackageEvent() && e.Action.IsTerminal() {
		var out strings.Builder
		if err := tests.Package(e.Package).WriteOutputTo(&out, 0); err != nil {
			return err
		}
		fmt.Fprint(r.w, said(out.String()))
	}
	return r.format.Format(e, tests)
}

// Err is part of testjson.EventHandler: a line that is no event.
func (r *runner) Err(line string) error {
	_, err := fmt.Fprintln(r.w, line)
	return err
}

// said is what a package prints after its tests, such as a table of results.
func said(out string) string {
	_, after, found := strings.Cut("\n"+out, "\nPASS\n")
	if !found {
		_, after, _ = strings.Cut("\n"+out, "\nFAIL\n")
	}
	var b strings.Builder
	for line := range strings.Lines(after) {
		if strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "FAIL") || strings.HasPrefix(line, "exit status ") {
			continue // the go command's
		}
		b.WriteString(line)
	}
	return b.String()
}

// verdict prints what failed, a line for each reason of skipped tests, and the counts.
func (r *runner) verdict() error {
	if r.tests == nil {
		return errors.New("no test ran")
	}
	for _, t := range r.tests.Skipped() {
		if skip, ok := allowed(r.skips, t.Package, t.Test.Name()); ok {
			r.skipped[skip.word+": "+skip.why]++
		} else {
			r.problems = append(r.problems, fmt.Sprintf("unexpected skip of %s %s:\n%s", t.Package, t.Test, strings.Join(r.tests.OutputLines(t), "")))
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
