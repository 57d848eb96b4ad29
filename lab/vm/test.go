// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// New starts a VM for a test, and closes it with the test.
func New(t testing.TB, o Options) *VM {
	t.Helper()
	if o.Progress == nil {
		o.Progress = t.Logf
	}
	v, err := Start(context.WithoutCancel(t.Context()), o) // else it ends before the test's cleanups
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// Test runs the tests of a package in the VM, and reports each as a subtest of t,
// with its output, as passed, failed or skipped. The flags are those of the test
// binary, such as -test.run=X. That no test ran is a failure.
//
// The tests are compiled here, and run in the directory of their package, as by
// `go test`.
func (v *VM) Test(t *testing.T, pkg string, flags ...string) {
	t.Helper()
	ctx := t.Context()
	out, err := output(ctx, "", "go", "list", "-f", "{{.Dir}}", pkg)
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(out)
	binary, err := compileTest(ctx, pkg, dir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := v.runTest(ctx, binary, dir, flags)
	var exit *ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Error(err) // what is known of the tests comes still
	}
	if r.report(t) == 0 {
		t.Errorf("no test of %s ran in the VM: %s", pkg, r.own.String())
	} else if err != nil && !t.Failed() {
		t.Errorf("the tests of %s passed, but: %v\n%s", pkg, err, r.own.String())
	}
}

// compileTest returns the package's test binary. It is in the cache, by package,
// since nothing would remove it with a test that is killed.
func compileTest(ctx context.Context, pkg, dir string) (string, error) {
	c, err := cache.Dir()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(c, "vm", "tests", fmt.Sprintf("%s-%.4x.test", filepath.Base(dir), sha256.Sum256([]byte(dir))))
	unlock, err := cache.Lock(ctx, binary+".lock", nil)
	if err != nil {
		return "", err
	}
	defer unlock()
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("failed to compile the tests of %s: %w\n%s", pkg, err, out)
	}
	return binary, nil
}

// runTest runs a test binary and collects its results, those until it ends early, too.
func (v *VM) runTest(ctx context.Context, binary, dir string, flags []string) (*results, error) {
	r := newResults()
	convert := exec.CommandContext(ctx, "go", "tool", "test2json", "-t") // -t: with how long they took
	stdin, err := convert.StdinPipe()
	if err != nil {
		return r, err
	}
	events, err := convert.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := convert.Start(); err != nil {
		return r, fmt.Errorf("failed to run go tool test2json: %w", err)
	}
	read := make(chan error, 1)
	go func() { read <- r.read(events) }()
	args := append([]string{binary, "-test.v=test2json", "-test.paniconexit0"}, flags...)
	err = v.Run(ctx, Cmd{Args: args, Dir: dir, Stdout: stdin, Stderr: stdin})
	stdin.Close()
	return r, errors.Join(err, <-read, convert.Wait())
}

// results are the tests of one run.
type results struct {
	order []string // top-level tests and subtests, as they began
	tests map[string]*result
	own   bytes.Buffer // what belongs to no test
}

type result struct {
	action  string // pass, fail or skip; empty: it did not end
	seconds float64
	output  bytes.Buffer
}

func newResults() *results { return &results{tests: map[string]*result{}} }

// read takes the events of go tool test2json, see its documentation.
func (r *results) read(events io.Reader) error {
	in := json.NewDecoder(events)
	for {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if err := in.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			io.Copy(io.Discard, events)
			return fmt.Errorf("failed to read test events: %w", err)
		}
		if e.Test == "" {
			r.own.WriteString(e.Output)
			continue
		}
		t := r.tests[e.Test]
		if t == nil {
			t = &result{}
			r.tests[e.Test] = t
			r.order = append(r.order, e.Test)
		}
		switch e.Action {
		case "output":
			if !strings.HasPrefix(e.Output, "=== ") && !strings.HasPrefix(strings.TrimSpace(e.Output), "--- ") {
				t.output.WriteString(e.Output)
			}
		case "pass", "fail", "skip":
			t.action, t.seconds = e.Action, e.Elapsed
		}
	}
}

// report makes a subtest of each test, and returns how many ran.
func (r *results) report(t *testing.T) (ran int) {
	t.Helper()
	for _, name := range r.order {
		if !strings.Contains(name, "/") {
			ran += r.reportOne(t, name, name)
		}
	}
	return ran
}

func (r *results) reportOne(t *testing.T, full, name string) (ran int) {
	t.Helper()
	one := r.tests[full]
	t.Run(name, func(t *testing.T) {
		for _, sub := range r.order {
			if rest, ok := strings.CutPrefix(sub, full+"/"); ok && !r.nested(full, sub) {
				ran += r.reportOne(t, sub, rest)
			}
		}
		text := strings.TrimRight(one.output.String(), "\n")
		switch one.action {
		case "pass":
			ran++
			if text != "" {
				t.Log(text)
			}
			t.Logf("%.2f s in the VM", one.seconds)
		case "skip":
			t.Skip(text)
		case "fail":
			ran++
			t.Error(text)
		default:
			ran++
			t.Errorf("it did not end\n%s", text)
		}
	})
	return ran
}

// nested says whether another subtest of full is above sub: slashes are in names, too.
func (r *results) nested(full, sub string) bool {
	for i := len(full) + 1; i < len(sub); i++ {
		if sub[i] == '/' && r.tests[sub[:i]] != nil {
			return true
		}
	}
	return false
}

// environment is this process's, with the mark.
func environment() []string { return append(os.Environ(), insideEnv+"=1") }
