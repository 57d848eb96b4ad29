// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command bench compares exec-lite with Nomad's raw_exec and with a driver that starts nothing, remote with manual ssh,
// and python with a bare interpreter and with manual uv and pip. It prints one table, and writes it as JSON for the
// README's chart:
//
//	go run ./lab/bench [-quick] [-json docs/benchmarks.json]
//	go run ./lab/bench -size      only the memory of exec-lite's processes, for docs/guides/size.md
//
// The two sides of each comparison take turns, since a machine's speed changes within minutes: only the ratios mean
// something, and only within one run. The command needs root, because the drivers' work on cgroups is included. It
// never fails because of a ratio: a busy machine is not a defect of the code.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/gobuild"
	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// options are the amounts to measure.
type options struct {
	tasks  int           // tasks of exec-lite's large job
	remote int           // tasks of remote's large job
	rounds int           // repetitions of jobs, outputs and builds
	starts int           // starts without Nomad's client
	window time.Duration // how long processor time is measured
	lines  int           // lines that a task prints
}

var (
	full = options{tasks: 300, remote: 30, rounds: 3, starts: 100, window: 10 * time.Second, lines: 10_000_000}
	fast = options{tasks: 50, remote: 10, rounds: 1, starts: 20, window: 3 * time.Second, lines: 1_000_000}
)

func main() {
	quick := flag.Bool("quick", false, "smaller jobs and fewer rounds")
	size := flag.Bool("size", false, "measure exec-lite alone, with 50, 300 and 1,000 tasks")
	file := flag.String("json", "", "write the results to this `file`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{options: full, size: *size}
	if *quick {
		b.options = fast
	}
	err := b.run(ctx)
	if err == nil {
		err = b.print(os.Stdout)
	}
	if err == nil && *file != "" {
		err = b.write(*file)
	}
	if err != nil {
		log.Fatal("failed to measure: ", err)
	}
}

// bench is one run of the command.
type bench struct {
	options
	results
	size     bool // measure exec-lite alone
	dir      string
	binaries map[string]string // paths of the plugins, by name
	nomad    string            // path of the nomad program
}

func (b *bench) run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("only root can run the benchmarks, because limits need writable cgroups")
	}
	b.dir, err = os.MkdirTemp("", "orbench-") // short, because unix sockets are created below it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.supervisorsEnded(ctx), os.RemoveAll(b.dir)) }()
	err = os.Chmod(b.dir, 0o755) // tasks run as other users
	if err == nil {
		err = b.build(ctx)
	}
	if err != nil {
		return err
	}
	syscall.Sync() // until a plugin's file is on the disk, its pages are charged to the process that maps them
	if b.size {
		return errors.Join(b.lite("", 50).measure(ctx), b.lite("", 300).measure(ctx), b.lite("", 1000).measure(ctx))
	}
	lite := b.lite("raw_exec", b.tasks)
	lite.config = map[string]any{"state_dir": filepath.Join(b.dir, "lite")}
	return errors.Join(lite.measure(ctx), b.lite("floor", fast.tasks).measure(ctx),
		b.isolated("floor", fast.tasks).measure(ctx), b.measureRemote(ctx), b.measurePython(ctx))
}

func (b *bench) build(ctx context.Context) error {
	log.Print("building the plugins")
	root, err := build.Root(".")
	if err != nil {
		return err
	}
	paths, err := build.Builder{Root: root}.All(ctx, "exec-lite", "remote", "python")
	if err == nil {
		b.nomad, err = nomad.Binary(ctx, log.Printf)
	}
	if err != nil {
		return err
	}
	b.binaries = map[string]string{"floor": filepath.Join(b.dir, "nomad-driver-floor")}
	for _, path := range paths {
		b.binaries[strings.TrimPrefix(filepath.Base(path), agent.DriverPrefix)] = path
	}
	return gobuild.Build{
		Dir: filepath.Join(root, "internal", "core"), Env: []string{"CGO_ENABLED=0"},
		Args: []string{"-trimpath", "-o", b.binaries["floor"], "./testsupport/floor"},
	}.Run(ctx)
}

// supervisorsEnded waits until the plugins' supervisors have ended. A supervisor ends by itself when it has neither a
// task nor a plugin.
func (b *bench) supervisorsEnded(ctx context.Context) error {
	return wait(context.WithoutCancel(ctx), "the end of the supervisors", func() (bool, error) {
		left := testsupport.Processes(func(args []string) bool {
			return args[0] == "outrider-supervisor" && strings.Contains(strings.Join(args, " "), b.dir)
		})
		return len(left) == 0, nil
	})
}

// wait polls until done returns true, for at most ten minutes: even a busy machine needs less, unless there is a fault.
func wait(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	err := poll.Until(ctx, 10*time.Millisecond, done)
	if err != nil {
		return fmt.Errorf("failed to wait for %s: %w", what, err)
	}
	return nil
}
