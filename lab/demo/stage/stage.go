// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package stage has the common parts of the demos: the agent, which is removed at the end, the keys of a presenter, and
// the player of scripts.
package stage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	xterm "golang.org/x/term"

	"github.com/outrider-dev/outrider/lab"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Demo is a program that shows a plugin with its own Nomad agent.
type Demo struct {
	Plugins map[string]string // configurations of its plugins, by name ("exec-lite"); empty: as in a lab
	OnHost  bool              // ignore LAB_RUNTIME: the demo needs this machine's devices
	With    lab.With

	// Play is the demo itself. Everything is removed after it, even after an error.
	Play func(context.Context, agent.Agent) error
}

// Main plays the demo and exits with status 1 if it fails. An interrupt also removes everything.
func (d Demo) Main() {
	if *keyed && !xterm.IsTerminal(int(os.Stdin.Fd())) {
		fmt.Fprintln(os.Stderr, "demo: -stage waits for keys: run the demo in a terminal")
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the process
	err := d.run(ctx)
	interrupted := ctx.Err() != nil && !errors.Is(err, errLeft)
	if err != nil && !interrupted {
		fmt.Fprintln(os.Stderr, term.Wrap("demo: "+err.Error(), term.Columns(os.Stderr), "  "))
		os.Exit(1)
	}
}

var errLeft = errors.New("failed to remove the demo completely")

func (d Demo) run(ctx context.Context) (err error) {
	start := time.Now()
	fmt.Println("\n== Starting the demo's own Nomad agent")
	dir, err := os.MkdirTemp("", "outrider-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // tasks run as other users
		return err
	}
	a, err := lab.StartDemo(ctx, filepath.Join(dir, "a"), d.OnHost, d.Plugins, d.With)
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if cerr := lab.EndDemo(cctx, a); cerr != nil {
			err = errors.Join(err, errLeft, cerr)
			return
		}
		fmt.Printf("\n== The demo's agent, its tasks and its files are removed (%s in all)\n", term.Short(time.Since(start)))
	}()
	fmt.Printf("   Nomad's web UI: %s/ui\n", a.Address())
	if err := d.Play(ctx, a); !errors.Is(err, errQuit) {
		return err
	}
	return nil
}

// keyed is set if a presenter starts each act with a key.
var keyed = flag.Bool("stage", false, "wait for a key after each act")

// errQuit ends a demo like its last act, without an error.
var errQuit = errors.New("quit")

// InOrder plays the acts of a demo until one fails. With -stage it waits for a key after each act; even a failed act
// can be repeated or skipped.
func InOrder(ctx context.Context, acts []string, play func(ctx context.Context, act string) error) error {
	for i := 0; i < len(acts); i++ {
		err := play(ctx, acts[i])
		if !*keyed || ctx.Err() != nil {
			if err != nil {
				return err
			}
			continue
		}
		if err != nil {
			fmt.Println("   the act failed:", err)
		}
		again, err := key(ctx, os.Stdin)
		if err != nil {
			return err
		}
		if again {
			i--
		}
	}
	return nil
}

// key waits for a presenter's key, and reports whether to repeat the act. The error is errQuit or a terminal error.
func key(ctx context.Context, terminal *os.File) (again bool, err error) {
	const keys = "[space: next, a: again, q: quit and clean up] "
	fmt.Print("\n" + term.Paint(os.Stdout, "2", keys))
	defer fmt.Print("\r\033[K")
	pressed, restore, err := Keys(terminal, means)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, restore()) }()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case k, ok := <-pressed:
			switch {
			case !ok || k == 'q' || k == 'Q' || k == interrupt:
				return false, errQuit
			case means(k):
				return k == 'a' || k == 'A', nil
			}
		}
	}
}

// interrupt is the key ^C, which sends no signal in raw mode.
const interrupt = 3

// means reports whether key accepts a key.
func means(k byte) bool { return strings.IndexByte(" \rnNaAqQ\x03", k) >= 0 }

// Keys puts a terminal into raw mode until restore is called, and returns the pressed keys. It closes the channel after
// the first key for which last returns true, and when the terminal is closed.
func Keys(terminal *os.File, last func(byte) bool) (keys <-chan byte, restore func() error, err error) {
	before, err := xterm.MakeRaw(int(terminal.Fd()))
	if err != nil {
		return nil, nil, fmt.Errorf("failed to read keys from the terminal: %w", err)
	}
	pressed := make(chan byte)
	go func() {
		defer close(pressed)
		var b [1]byte
		for {
			if n, err := terminal.Read(b[:]); n == 0 || err != nil {
				return
			}
			pressed <- b[0]
			if last(b[0]) {
				return
			}
		}
	}()
	return pressed, func() error { return xterm.Restore(int(terminal.Fd()), before) }, nil
}
