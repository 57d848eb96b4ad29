// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package stage has the common parts of the demos: it starts an agent and removes it at the end, plays a demo act by
// act, and reads a presenter's keys.
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

// Demo is a program that shows a plugin in its own Nomad agent.
type Demo struct {
	Plugins map[string]string // the configurations of its plugins, by name ("exec-lite"); if empty, the lab's
	OnHost  bool              // run the agent on this machine, even if LAB_RUNTIME is container
	With    lab.With

	// Play shows the plugin. Afterwards, even if Play failed, Main removes the agent and its files.
	Play func(context.Context, agent.Agent) error
}

// Main runs the demo, and exits with status 1 if the demo fails. After an interrupt, it still removes everything.
func (d Demo) Main() {
	if *keyed && !xterm.IsTerminal(int(os.Stdin.Fd())) {
		fmt.Fprintln(os.Stderr, "demo: -stage waits for keys: run the demo in a terminal")
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // from now on, a second interrupt ends the process
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
	if err := os.Chmod(dir, 0o755); err != nil { // other users' tasks must reach the agent's files
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

// keyed makes InOrder wait for a presenter's key after each act.
var keyed = flag.Bool("stage", false, "wait for a key after each act")

// errQuit is returned when the presenter ends the demo before the last act. It is not a failure.
var errQuit = errors.New("quit")

// InOrder plays the acts of a demo until one fails. With -stage, it waits for a key after each act, even a failed one,
// and then plays the next act, plays this act again, or returns errQuit.
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

// key waits for a presenter's key, and reports whether to play the act again. If the presenter quits, err is errQuit.
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

// interrupt is the byte that ^C sends in raw mode, instead of a signal.
const interrupt = 3

// means reports whether k is one of the keys that a presenter can press after an act.
func means(k byte) bool { return strings.IndexByte(" \rnNaAqQ\x03", k) >= 0 }

// Keys puts a terminal into raw mode, and sends the pressed keys to a channel. The channel is closed after the first
// key for which last returns true, and when the terminal is closed. Call restore to end raw mode.
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
