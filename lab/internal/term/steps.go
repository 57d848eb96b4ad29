// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package term prints output for users: steps with their outcome, and tables. On a terminal, a running step updates its
// line in place; elsewhere, it prints plain lines.
package term

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Printer prints steps. It is safe for concurrent use, but steps do not nest.
type Printer struct {
	w     io.Writer
	tty   bool
	width int
	first time.Duration // delay of the first update of a running step
	every time.Duration // interval of the later updates

	mu      sync.Mutex // guards the following fields
	name    string     // the running step; empty: none
	msg     string     // the last progress of the running step
	started time.Time
	quit    chan struct{} // closed by the step's end
}

// New returns a Printer for w. On a terminal, lines change in place, in colour unless NO_COLOR is set (no-color.org).
func New(w io.Writer) *Printer {
	p := &Printer{w: w, width: Columns(w), first: 3 * time.Second, every: 10 * time.Second}
	if f, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		p.tty = term.IsTerminal(int(f.Fd()))
	}
	if p.tty {
		p.every = time.Second // the line is updated in place
	}
	return p
}

// Step begins a step. Call end when the step is over, with the outcome in a few words. An error marks the step as
// failed, or as interrupted if it is context.Canceled. end does not print the error, since the caller returns it.
func (p *Printer) Step(format string, args ...any) (end func(err error, outcome string, args ...any)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name, p.msg = fmt.Sprintf(format, args...), ""
	p.started = time.Now()
	p.quit = make(chan struct{})
	if p.tty {
		p.show()
	}
	go p.tick(p.quit)
	return p.end
}

// tick shows at intervals that the step still runs.
func (p *Printer) tick(quit chan struct{}) {
	for wait := p.first; ; wait = p.every {
		select {
		case <-quit:
			return
		case <-time.After(wait):
		}
		p.mu.Lock()
		if p.quit == quit && p.name != "" {
			p.show()
		}
		p.mu.Unlock()
	}
}

// show prints the running step: in place on a terminal, cut to the terminal's width; otherwise as another line.
func (p *Printer) show() {
	took := ""
	if d := time.Since(p.started); d >= p.first {
		took = " (" + Short(d) + ")"
	}
	if p.tty {
		text := Cut(strings.TrimSpace(p.name+" … "+p.msg), p.width-4-len(took)) + took
		fmt.Fprintf(p.w, "\r\033[K %s %s", Paint(p.w, "36", "•"), text)
		return
	}
	text := "...    " + p.name
	if p.msg != "" {
		text += ": " + p.msg
	}
	fmt.Fprintln(p.w, Wrap(text+took, p.width, "       "))
}

func (p *Printer) end(err error, outcome string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.quit)
	mark, code, plain := "✓", "32", "ok    "
	switch {
	case errors.Is(err, context.Canceled):
		mark, code, plain, outcome = "-", "33", "ended ", "interrupted"
	case err != nil:
		mark, code, plain, outcome = "✗", "31", "failed", ""
	default:
		outcome = fmt.Sprintf(outcome, args...)
	}
	if outcome != "" {
		outcome = ": " + outcome
	}
	took := "(" + Short(time.Since(p.started)) + ")"
	if p.tty {
		text := Wrap(fmt.Sprintf(" %s %s%s %s", mark, p.name, outcome, took), p.width, "   ")
		fmt.Fprintf(p.w, "\r\033[K%s\n", strings.Replace(text, mark, Paint(p.w, code, mark), 1))
	} else {
		fmt.Fprintln(p.w, Wrap(fmt.Sprintf("%s %s%s %s", plain, p.name, outcome, took), p.width, "       "))
	}
	p.name = ""
}

// Progress sets the progress of the running step. Without a terminal, only the updates of a long step show it.
func (p *Printer) Progress(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.msg = fmt.Sprintf(format, args...)
	switch {
	case p.name == "":
		fmt.Fprintln(p.w, Wrap(p.msg, p.width, "  "))
	case p.tty:
		p.show()
	}
}

// Short formats a duration for users: 0.4 s, 12 s, 3 min 5 s.
func Short(d time.Duration) string {
	switch s := d.Seconds(); {
	case s < 9.95:
		return fmt.Sprintf("%.1f s", s)
	case s < 120:
		return fmt.Sprintf("%.0f s", s)
	default:
		return fmt.Sprintf("%d min %d s", int(s)/60, int(s)%60)
	}
}
