// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gotest.tools/gotestsum/testjson"
)

// Test runs the tests of a tier and prints a line for each package. It fails if a test or a
// build fails, if no test runs, and if a test is skipped without a reason in skips.txt.
func Test(ctx context.Context, root string, tier Tier) error {
	if tier == More && os.Getenv(sampleVar) == "" {
		os.Setenv(sampleVar, seed(time.Now())) // for the tests, and for the condition of their skips
	}
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

// noRaceDetector is the package whose tests fail with the race detector, though it finds no race there: when the plugin
// that started a supervisor is gone, the supervisor's cgroup stays. Why is unknown.
const noRaceDetector = "internal/core/supervisor"

// TestModule compiles a module, named by its folder in the repository, by its own go.mod as a release does. Then it
// runs the module's unit tests as Test does, with the race detector if race says so.
func TestModule(ctx context.Context, root, module string, race bool) error {
	modules, err := workspaceModules(ctx, root)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if m.dir != filepath.Clean(module) {
			continue
		}
		env := append(goEnv(ctx, root), "GOWORK=off")
		if out, err := output(ctx, env, filepath.Join(root, m.dir), "go", "build", "./..."); err != nil {
			return fmt.Errorf("failed to build %s by its own go.mod: %w\n%s", m.dir, err, out)
		}
		skips, err := skips()
		if err != nil {
			return err
		}
		tiers, err := tiers()
		if err != nil {
			return err
		}
		r := &runner{w: os.Stdout, root: root, skips: skips, tiers: tiers, only: m.path}
		if race {
			r.flags, r.plain = []string{"-race"}, noRaceDetector
		}
		return r.test(ctx, Main)
	}
	return fmt.Errorf("go.work has no module in %q", module)
}

type runner struct {
	w            io.Writer
	root         string
	skips, tiers []rule
	only         string   // the path of a module whose unit tests are all that runs; empty is all
	flags        []string // for unit tests
	plain        string   // end of the path of a package that is tested without the flags

	format   testjson.EventFormatter
	tests    *testjson.Execution // of all go commands
	skipped  map[string]int      // by reason
	failed   []string            // go commands
	problems []string            // beside failed tests
}

// part is tests that differ in how the go command runs them.
type part struct {
	flags      []string
	selections []selection
}

func isE2E(pkg string) bool { return strings.Contains(pkg+"/", "/lab/e2e/") }

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
	if r.only != "" {
		all = slices.DeleteFunc(all, func(pkg string) bool { return isE2E(pkg) || !strings.HasPrefix(pkg+"/", r.only+"/") })
	}
	unit := slices.DeleteFunc(slices.Clone(all), isE2E)
	var plain []string // without the flags
	if r.plain != "" {
		isPlain := func(pkg string) bool { return strings.HasSuffix(pkg, "/"+r.plain) }
		plain = slices.DeleteFunc(slices.Clone(unit), func(pkg string) bool { return !isPlain(pkg) })
		unit = slices.DeleteFunc(unit, isPlain)
	}
	e2e := slices.DeleteFunc(all, func(pkg string) bool { return !isE2E(pkg) })
	err = r.run(ctx, []part{
		// one package at a time: each has several agents of its own
		{[]string{"-p=1", "-count=1", "-timeout=40m"}, selections(tier, r.tiers, e2e)},
		// most of a test is waiting: more packages at once than there are processors
		{append([]string{"-p=4", "-timeout=20m"}, r.flags...), selections(tier, r.tiers, unit)},
		{[]string{"-p=4", "-timeout=20m"}, selections(tier, r.tiers, plain)},
	})
	if err != nil {
		return err
	}
	return r.verdict(tier)
}

// run runs the parts side by side, since most of a test is waiting, and reads what their go
// commands print.
func (r *runner) run(ctx context.Context, parts []part) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	output, w := io.Pipe()
	go func() {
		var running sync.WaitGroup
		for _, p := range parts {
			running.Go(func() {
				for _, s := range p.selections {
					goTest(ctx, w, r.root, s, p.flags...)
				}
			})
		}
		running.Wait()
		w.Close()
	}()
	tests, err := testjson.ScanTestOutput(testjson.ScanConfig{
		Stdout: output, Handler: r, Stop: cancel, IgnoreNonJSONOutputLines: true,
	})
	output.Close() // lets the commands end if not all of it was read
	if r.tests = tests; err != nil {
		return fmt.Errorf("failed to read the tests' output: %w", err)
	}
	return ctx.Err()
}

// goTest runs one go command, whose output it writes by whole lines: other commands write to the same pipe. A line
// that is no event tells what else there is to say, such as that the command has failed.
func goTest(ctx context.Context, w *io.PipeWriter, root string, s selection, flags ...string) {
	if len(s.packages) == 0 {
		return
	}
	if s.env != "" {
		fmt.Fprintf(w, "with %s:\n", s.env)
	}
	// `mage lint` runs go vet (golangci-lint's govet); without a debugger's tables linking takes half the time
	args := slices.Concat([]string{"test", "-json", "-vet=off", "-ldflags=-s -w"}, flags, s.flags, s.packages)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(goEnv(ctx, root), s.env), os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintf(w, "%s%v\n", commandFailed, err)
		return
	}
	lines := bufio.NewReader(out)
	for err == nil {
		var line []byte
		line, err = lines.ReadBytes('\n')
		_, _ = w.Write(line)
	}
	if err := cmd.Wait(); err != nil {
		fmt.Fprintf(w, "%s%v\n", commandFailed, err)
	}
}

const commandFailed = "go test: "

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
	if strings.HasPrefix(line, commandFailed) {
		r.failed = append(r.failed, line)
		return nil
	}
	_, err := fmt.Fprintln(r.w, line)
	return err
}

// verdict prints what failed, a line for each reason of skipped tests, and the counts.
func (r *runner) verdict(tier Tier) error {
	if len(r.tests.Failed()) == 0 { // a command that ends with status 1 has told of its failed tests
		r.problems = append(r.problems, r.failed...)
	}
	ran := map[bool]int{} // by whether they are end-to-end tests
	for _, name := range r.tests.Packages() {
		pkg := r.tests.Package(name)
		ran[isE2E(name)] += pkg.Total - len(pkg.Skipped)
	}
	for e2e, name := range map[bool]string{false: "unit", true: "end-to-end"} {
		if tier == Main && ran[e2e] == 0 && !(e2e && r.only != "") {
			r.problems = append(r.problems, "no "+name+" test ran")
		}
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
