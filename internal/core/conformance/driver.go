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
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Driver describes the binary of a driver plugin, which need not use this core. Test and Run run the cases that every
// driver must pass:
//
//	conformance.Driver{Exe: "bin/nomad-driver-exec-lite"}.Test(t)
//
// Nomad's plugin loader starts the binary as in an agent, and Nomad's own client code calls it over gRPC.
type Driver struct {
	// Exe is the plugin's binary. If it is empty, the running test binary is also used as the plugin: see Main.
	Exe string

	// Config is HCL or JSON: the content of the plugin's config block. The options state_dir and cache_dir default to
	// directories of the run, and the option enabled defaults to true, if the plugin has these options.
	Config string

	// Task is HCL or JSON: the content of a task's config block. SCRIPT in it stands for a script of /bin/sh. If Task is
	// empty, it is derived from the options of the driver's tasks: script, code (of Python), or command and args.
	Task string

	// Files returns the directory to which the tasks of an allocation really write, given the allocation's directory on
	// this machine. Nil means that both are the same.
	Files func(allocDir string) string

	// Only selects the cases whose names match the expression. Nil selects all.
	Only *regexp.Regexp
}

// Main implements TestMain for a plugin's own test. The test binary can then also act as the plugin:
//
//	func TestMain(m *testing.M) { conformance.Main(m, main) }
//
//	func TestDriver_Conforms(t *testing.T) { conformance.Driver{}.Test(t) }
func Main(m *testing.M, plugin func()) {
	testsupport.BeginRoles()
	supervisor.Main()
	if os.Getenv(pluginVar) != "" {
		plugin()
		return
	}
	os.Exit(testsupport.EndRoles(m.Run()))
}

// pluginVar is set in the environment of a test binary that must act as the plugin.
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

// Run runs the cases and calls report after each one. It returns an error if the plugin can't be loaded.
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

// driverCase is one requirement of the contract.
type driverCase struct {
	name string
	run  func(*check)
}

// driverCases are all cases in the order of Run. A case must leave no task behind.
var driverCases = slices.Concat(pluginCases, startCases, endCases, recoverCases, callCases)

// check is one running case. A case ends itself with fail, skip or notApplicable.
type check struct {
	*host
	ctx      context.Context // ends with the case
	cleanups []func()
	notes    []string
}

// ended is the value with which fail, skip and notApplicable panic.
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

// until waits for a condition. It ends the case if the condition does not hold within the time limit soon.
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

// receive returns the next value of a stream. If none arrives within the constant soon, it ends the case.
func receive[T any](c *check, ch <-chan T, what string) T {
	select {
	case v, open := <-ch:
		if !open {
			c.fail("the stream was closed without %s", what)
		}
		return v
	case <-time.After(soon):
		c.fail("%s: not received within %s", what, soon)
		panic("unreachable")
	}
}

// These time limits suffice even on a busy machine. A correct driver needs only a small part of them.
const (
	soon      = time.Minute
	caseLimit = 5 * time.Minute
)

// run runs one case. If it takes too long, the plugin is killed, which ends the hanging call.
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
