// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command bench compares exec-lite with Nomad's own raw_exec, and python with a bare
// interpreter and with environments made by hand, in one run and on one agent, and
// prints the ratios:
//
//	go run ./lab/bench [-quick] [-only memory,start,job,cpu,crowd,python]
//
// What is compared takes turns, since a machine's speed drifts within minutes; only the
// ratios mean something, and only within one run. It needs root, since what is
// compared includes each driver's work on cgroups.
//
// The exit code tells whether it could measure. Whether a bar is met is printed
// and is no failure: a busy machine is no defect of the code.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
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

// options say how much to measure.
type options struct {
	tasks    int // of a job
	rounds   int // of one job with 1 task and one with all
	readings int // of memory, of which the median counts
	starts   int // of each driver at the driver level
	cpu      time.Duration
	crowd    int // tasks that are started at once
	recovery int // tasks that outlive their plugin
	only     []string

	pythonStarts int // of each way to start a script
	pythonRounds int // of environments that are made, with each installer
}

var (
	full = options{tasks: 50, rounds: 3, readings: 5, starts: 250, cpu: 10 * time.Second, crowd: 300, recovery: 500,
		pythonStarts: 100, pythonRounds: 5}
	quick = options{tasks: 50, rounds: 1, readings: 3, starts: 60, cpu: 5 * time.Second, crowd: 100, recovery: 100,
		pythonStarts: 20, pythonRounds: 1}
)

func (o options) want(part string) bool { return len(o.only) == 0 || slices.Contains(o.only, part) }

func main() {
	isQuick := flag.Bool("quick", false, "fewer rounds: for a look, and for CI")
	only := flag.String("only", "", "only these parts, with commas between: memory (with job), start, cpu, crowd, python")
	flag.Parse()
	o := full
	if *isQuick {
		o = quick
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench: failed to measure:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, w io.Writer) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("only root can: limits need cgroups that may be written")
	}
	start := time.Now()
	steps := term.New(os.Stderr)
	binary, pythonBinary, err := prepare(ctx, steps)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "orbench-") // short: unix sockets are below it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	syscall.Sync() // pages of a file that is not on disk yet count as its user's own

	c, closeAgent, err := startAgent(ctx, steps, binary, filepath.Join(dir, "agent"), "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAgent()) }()

	var r results
	if o.want("memory") || o.want("job") {
		if r.jobs, err = measureJobs(ctx, steps, c, o); err != nil {
			return err
		}
	}
	if o.want("start") {
		if r.starts, err = measureStarts(ctx, steps, binary, filepath.Join(dir, "start"), o); err != nil {
			return err
		}
	}
	if o.want("cpu") {
		if r.cpu, err = measureCPU(ctx, steps, c, o); err != nil {
			return err
		}
	}
	if o.want("crowd") {
		if r.crowd, err = measureCrowd(ctx, steps, binary, filepath.Join(dir, "crowd"), o); err != nil {
			return err
		}
	}
	if o.want("python") {
		if r.python, err = measurePython(ctx, steps, binary, pythonBinary, o); err != nil {
			return err
		}
	}
	r.took = time.Since(start)
	return r.print(w, o)
}

func startAgent(ctx context.Context, steps *term.Printer, binary, dir, config string) (*cluster, func() error, error) {
	end := steps.Step("Starting an agent")
	a, err := agent.Run(ctx, agent.Options{
		Runtime: agent.Host, Dir: dir, Name: "outrider-bench", Progress: steps.Progress, Config: config,
		Plugins: []agent.Plugin{{Binary: binary, Config: `state_dir = "${state_dir}"`}},
	})
	end(err, "")
	if err != nil {
		return nil, nil, err
	}
	return &cluster{agent: a, marker: fmt.Sprintf("1%07d", os.Getpid())}, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		end := steps.Step("Removing what was started")
		err := a.Close(ctx)
		end(err, "")
		return err
	}, nil
}

func prepare(ctx context.Context, steps *term.Printer) (binary, pythonBinary string, err error) {
	end := steps.Step("Finding Nomad")
	prog, err := nomad.Binary(ctx, steps.Progress)
	end(err, "%s (%s)", prog.Version, prog.Origin)
	if err != nil {
		return "", "", err
	}
	end = steps.Step("Building %s and python", lite)
	root, err := build.Root(".")
	var paths []string
	if err == nil {
		paths, err = build.Builder{Root: root}.All(ctx, lite, "python")
	}
	end(err, "")
	if err != nil {
		return "", "", err
	}
	return paths[0], paths[1], nil
}
