// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package stage is what the demos have in common: a Nomad agent of their own, which is
// removed at the end, and how they print.
package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/lab"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Demo is one demo.
type Demo struct {
	Plugins map[string]string // its plugins by name ("exec-lite"), and their configuration
	OnHost  bool              // whatever LAB_RUNTIME says: it is about this machine's devices

	// Play is the demo itself. Everything is removed after it, whatever it returns.
	Play func(context.Context, agent.Agent) error
}

// Main plays it and ends the process. An interrupt ends it as well, with everything removed.
func (d Demo) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second one ends the process
	err := d.run(ctx)
	interrupted := ctx.Err() != nil && !errors.Is(err, errLeft)
	if err != nil && !interrupted {
		fmt.Fprintln(os.Stderr, term.Wrap("demo: "+err.Error(), term.Width, "  "))
		os.Exit(1)
	}
}

var errLeft = errors.New("something of the demo is left")

func (d Demo) run(ctx context.Context) (err error) {
	start := time.Now()
	Say("Starting a Nomad agent of the demo's own")
	dir, err := os.MkdirTemp("", "outrider-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // tasks may be of any user
		return err
	}
	runtime := ""
	if d.OnHost {
		runtime = "host"
	}
	a, err := lab.StartDemo(ctx, filepath.Join(dir, "a"), runtime, d.Plugins)
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		cerr := a.Close(cctx)
		if cerr == nil {
			Say("The demo's agent, its tasks and its files are gone (%.0f s in all)", time.Since(start).Seconds())
		}
		if cerr != nil {
			err = errors.Join(err, errLeft, cerr)
		}
	}()
	return d.Play(ctx, a)
}

// Submit submits a job file's text, and returns the job's id.
func Submit(a agent.Agent, text string) (string, error) {
	job, err := a.Client().Jobs().ParseHCL(text, true)
	if err != nil {
		return "", fmt.Errorf("failed to parse the job: %w", err)
	}
	if _, _, err := a.Client().Jobs().Register(job, nil); err != nil {
		return "", fmt.Errorf("failed to submit the job: %w", err)
	}
	return *job.ID, nil
}

// Say prints the title of an act.
func Say(format string, args ...any) { fmt.Println("\n" + lines("== ", format, args...)) }

// Note prints a line within one.
func Note(format string, args ...any) { fmt.Println(lines("   ", format, args...)) }

// lines are no wider than a terminal.
func lines(prefix, format string, args ...any) string {
	return term.Wrap(prefix+fmt.Sprintf(format, args...), term.Width, "   ")
}

// Until asks again and again until it is done, at most for two minutes.
func Until(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	start := time.Now()
	next := 3 * time.Second
	err := poll.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		if took := time.Since(start); took >= next {
			Note("(waiting for %s: %s)", what, term.Short(took))
			next += 10 * time.Second
		}
		return done()
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("timed out waiting for %s: %w", what, err)
	}
	return err
}
