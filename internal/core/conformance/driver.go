// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
)

// Driver is the binary of a driver plugin, with or without this core, and runs the table
// of cases that every driver must pass:
//
//	conformance.Driver{Exe: "bin/nomad-driver-exec-lite"}.Test(t)
//
// The binary is started as Nomad's plugin loader starts it, three times, and is
// called over gRPC by Nomad's own client code.
type Driver struct {
	// Exe is the plugin's binary. If it is empty, the plugin is this test binary: see Main.
	Exe string

	// Env is added to the environment of this process for the binary.
	Env map[string]string

	// Config is HCL or JSON: the content of the plugin's config block. If the plugin
	// has options state_dir and cache_dir, they are directories of the run, and
	// enabled is true, unless they are set here.
	Config string

	// Task is HCL or JSON: the content of a task's config block, in which SCRIPT
	// stands for a script of /bin/sh. If it is empty it is derived from the options
	// of the driver's tasks: script, code (of Python), or command and args.
	Task string

	// Files returns where the files of an allocation are that its tasks see, given its directory on this
	// machine. Nil is that directory itself.
	Files func(allocDir string) string

	// Only selects the cases that it matches by name. Nil selects all.
	Only *regexp.Regexp
}

// Main is the TestMain of a plugin's own test, whose binary is then the plugin too:
//
//	func TestMain(m *testing.M) { conformance.Main(m, main) }
//
//	func TestDriver_Conforms(t *testing.T) { conformance.Driver{}.Test(t) }
func Main(m *testing.M, plugin func()) {
	supervisor.Main()
	if os.Getenv(pluginVar) != "" {
		plugin()
		return
	}
	os.Exit(m.Run())
}

// pluginVar is set in the environment of a test binary that has to be the plugin.
const pluginVar = "OUTRIDER_CONFORMANCE_PLUGIN"

// Result is the outcome of one case.
type Result struct {
	Case    string
	Outcome Outcome
	Why     string // the reason of a failure or a skip, or a measured value
}

// Outcome is how a case ended.
type Outcome string

// The outcomes of a case.
const (
	Passed        Outcome = "passed"
	Failed        Outcome = "failed"
	Skipped       Outcome = "skipped" // this machine or user can't run the case
	NotApplicable Outcome = "n/a"     // the driver's capabilities exclude it
)

// Test runs each case as a subtest.
func (d Driver) Test(t *testing.T) {
	t.Helper()
	err := d.Run(func(r Result) {
		if r.Outcome == NotApplicable {
			return
		}
		t.Run(r.Case, func(t *testing.T) {
			switch r.Outcome {
			case Failed:
				t.Error(r.Why)
			case Skipped:
				t.Skip(r.Why)
			}
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Run runs the table and calls report after each case. It returns an error if the plugin
// does not load.
func (d Driver) Run(report func(Result)) error {
	h, err := newHost(d)
	if err != nil {
		return err
	}
	for _, c := range driverCases {
		if d.Only == nil || d.Only.MatchString(c.name) {
			report(h.run(c))
		}
	}
	left := Result{Case: "nothing is left of the plugin", Outcome: Passed}
	if left.Why = h.close(); left.Why != "" {
		left.Outcome = Failed
	}
	report(left)
	return nil
}

// driverCase is one point of the contract.
type driverCase struct {
	name string
	run  func(*check)
}

// driverCases are all cases in order. A case leaves no task behind.
var driverCases = slices.Concat(pluginCases, startCases, endCases, recoverCases, callCases)

// check is one running case. A case ends itself with fail, skip or notApplicable.
type check struct {
	*host
	ctx      context.Context // ends with the case
	cleanups []func()
	notes    []string
}

// ended is what fail, skip and notApplicable panic with.
type ended struct {
	outcome Outcome
	why     string
}

func (c *check) fail(format string, args ...any) {
	panic(ended{Failed, fmt.Sprintf(format, args...)})
}

func (c *check) skip(why string) { panic(ended{Skipped, why}) }

func (c *check) notApplicable(why string) { panic(ended{NotApplicable, why}) }

func (c *check) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// ok ends the case unless err is nil.
func (c *check) ok(err error, doing string) {
	if err != nil {
		c.fail("%s: %v", doing, err)
	}
}

func (c *check) needRoot() {
	if os.Geteuid() != 0 {
		c.skip("needs root")
	}
}

func (c *check) cleanup(f func()) { c.cleanups = append(c.cleanups, f) }

// until waits for a condition.
func (c *check) until(what string, holds func() bool) {
	if !eventually(soon, holds) {
		c.fail("%s: not within %s", what, soon)
	}
}

// eventually reports whether a condition holds before the limit.
func eventually(limit time.Duration, holds func() bool) bool {
	for end := time.Now().Add(limit); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// receive returns what a stream brings first.
func receive[T any](c *check, ch <-chan T, what string) T {
	select {
	case v, open := <-ch:
		if !open {
			c.fail("the stream was closed without %s", what)
		}
		return v
	case <-time.After(soon):
		c.fail("no %s within %s", what, soon)
		panic("unreachable")
	}
}

// Limits on what has to happen on a busy machine. A correct driver needs a small part of
// them.
const (
	soon      = time.Minute
	caseLimit = 5 * time.Minute
)

// run runs one case. If it takes too long the plugin is killed, which ends the call that
// hangs.
func (h *host) run(dc driverCase) (result Result) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &check{host: h, ctx: ctx, cleanups: []func(){cancel}}
	result = Result{Case: dc.name, Outcome: Passed}
	limit := time.AfterFunc(caseLimit, h.kill)
	defer func() {
		if p := recover(); p != nil {
			e, expected := p.(ended)
			if !expected {
				panic(p)
			}
			result.Outcome, result.Why = e.outcome, strings.Join(strings.Fields(e.why), " ")
		}
		for _, f := range slices.Backward(c.cleanups) {
			f()
		}
		switch {
		case !limit.Stop():
			result.Outcome = Failed
			result.Why = strings.TrimSuffix(fmt.Sprintf("a call did not return within %s: %s", caseLimit, result.Why), ": ")
		case result.Outcome == Passed && h.pid != 0 && !alive(h.pid):
			result.Outcome, result.Why = Failed, "the plugin's process ended: "+h.lastWords()
		}
	}()
	dc.run(c)
	result.Why = strings.Join(c.notes, ", ")
	return result
}
