// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command bench compares exec-lite with Nomad's own raw_exec, and python with a bare
// interpreter and with environments made by hand, in one run and on one agent, and
// prints the ratios:
//
//	go run ./lab/bench [-quick] [-only memory,start,job,cpu,crowd,python,remote] [-against DIR]
//
// With -against it compares only the starts of exec-lite and python with those of another build's binaries in DIR.
//
// The sides of each comparison take turns, since a machine's speed drifts within minutes.
// Only the ratios are meaningful, and only within one run. It needs root, since the drivers'
// work on cgroups is included.
//
// The exit code reports whether the measurement succeeded. A missed bar is printed and is
// not a failure: a busy machine is not a defect of the code.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// The two drivers, in the order in which they take turns.
const (
	lite = "exec-lite"
	raw  = "raw_exec"
)

var both = []string{lite, raw}

// options are the amounts to measure.
type options struct {
	tasks    int // of a job
	rounds   int // of one job with 1 task and one with all
	readings int // of memory, for one median
	starts   int // of each driver, without Nomad's client
	cpu      time.Duration
	crowd    int // tasks of the largest job
	recovery int // tasks that run while their plugin is killed
	only     []string
	against  string // directory of another build's plugins, empty for none

	pythonStarts int // of a script, in each way
	pythonRounds int // of builds, with each installer
}

var (
	full = options{tasks: 50, rounds: 3, readings: 5, starts: 250, cpu: 10 * time.Second, crowd: 300, recovery: 500,
		pythonStarts: 100, pythonRounds: 5}
	quick = options{tasks: 50, rounds: 1, readings: 3, starts: 60, cpu: 5 * time.Second, crowd: 100, recovery: 100,
		pythonStarts: 20, pythonRounds: 1}
)

func main() {
	isQuick := flag.Bool("quick", false, "fewer rounds: for a look, and for CI")
	only := flag.String("only", "",
		"only these parts, with commas between: memory (with job), start, cpu, crowd, python, remote")
	against := flag.String("against", "", "compare starts with those of the plugins in this `directory`, and nothing else")
	flag.Parse()
	o := full
	if *isQuick {
		o = quick
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	if o.against = *against; *against != "" {
		o.only = []string{"against"}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Hour) // a busy machine takes several times as long
	defer cancel()
	b := &bench{options: o, steps: term.New(os.Stderr)}
	if err := b.run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench: failed to measure:", err)
		os.Exit(1)
	}
}

// bench is one run of the benchmark.
type bench struct {
	options
	results
	steps        *term.Printer
	dir          string
	liteBinary   string
	pythonBinary string
}

// step shows f as a step of the run.
func (b *bench) step(f func() error, format string, args ...any) error {
	end := b.steps.Step(format, args...)
	err := f()
	end(err, "")
	return err
}

// turns calls f for each driver, as a step.
func (b *bench) turns(f func(driver string) error, format string, args ...any) error {
	for _, driver := range both {
		if err := b.step(func() error { return f(driver) }, "%s: "+format, append([]any{driver}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) run(ctx context.Context, w io.Writer) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("root is required: limits need writable cgroups")
	}
	start := time.Now()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	b.dir, err = os.MkdirTemp("", "orbench-") // short: unix sockets are below it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()

	syscall.Sync() // until a file is on the disk, its pages are charged to the process that maps them

	c, err := b.startAgent(ctx, "agent", "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close(ctx)) }()

	for _, part := range []struct {
		names   []string
		measure func(context.Context) error
	}{
		{[]string{"memory", "job"}, c.measureJobs},
		{[]string{"start"}, b.measureStarts},
		{[]string{"cpu"}, c.measureCPU},
		{[]string{"crowd"}, b.measureCrowd},
		{[]string{"python"}, b.measurePython},
		{[]string{"remote"}, b.measureRemote},
	} {
		wanted := func(name string) bool { return len(b.only) == 0 || slices.Contains(b.only, name) }
		if slices.ContainsFunc(part.names, wanted) {
			if err := part.measure(ctx); err != nil {
				return err
			}
		}
	}
	if b.against != "" {
		if err := b.measureAgainst(ctx); err != nil {
			return err
		}
	}
	if err := b.print(w); err != nil {
		return err
	}
	isQuick := ""
	if b.starts == quick.starts {
		isQuick = " (this was: go run ./lab/bench -quick)"
	}
	if b.against != "" {
		isQuick += " (this was: -against " + b.against + ")"
	}
	fmt.Fprintf(w, "\n%s. Again: go tool mage bench%s\n", term.Short(time.Since(start)), isQuick)
	return nil
}

// prepare finds Nomad and builds the plugins.
func (b *bench) prepare(ctx context.Context) error {
	end := b.steps.Step("Finding Nomad")
	prog, err := nomad.Binary(ctx, b.steps.Progress)
	end(err, "%s (%s)", prog.Version, prog.Origin)
	if err != nil {
		return err
	}
	return b.step(func() error {
		root, err := build.Root(".")
		if err != nil {
			return err
		}
		paths, err := build.Builder{Root: root}.All(ctx, lite, "python")
		if err != nil {
			return err
		}
		b.liteBinary, b.pythonBinary = paths[0], paths[1]
		return nil
	}, "Building %s and python", lite)
}
