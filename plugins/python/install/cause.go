// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"fmt"
	"strings"
	"syscall"
)

// Cause is why an installer failed, if anything other than its output shows it.
type Cause int

// The causes.
const (
	Unknown     Cause = iota // only the installer's last lines show it; another interpreter may work
	Locked                   // the same for locked requirements: no other interpreter, since a file may be corrupt
	Unreachable              // an index did not answer, but may later, or on another node
	NoSpace                  // the disk is full
	TimedOut                 // ctx ended
	TooLarge                 // the packages are larger than an environment may be
)

// Error is an installer's failure.
type Error struct {
	Cause Cause
	Tool  string   // "uv 0.8.13"
	Words string   // one sentence for the job's author
	Lines []string // the installer's last lines, without credentials
}

func (e *Error) Error() string { return e.Words + e.LastLines() }

// LastLines are the installer's, to follow other words; "" without any.
func (e *Error) LastLines() string {
	if len(e.Lines) == 0 {
		return ""
	}
	const head, tail = 500, 300 // of a traceback, the exception comes last

	// Events of Nomad have one line.
	text := strings.Join(strings.Fields(strings.Join(e.Lines, " ")), " ")
	if len(text) > head+tail {
		text = strings.ToValidUTF8(text[:head], "") + " … " + strings.ToValidUTF8(text[len(text)-tail:], "")
	}
	return fmt.Sprintf(" (the last lines of %s: %s)", e.Tool, text)
}

// Temporary reports whether the same may succeed later or elsewhere.
func (e *Error) Temporary() bool {
	return e.Cause == Unreachable || e.Cause == NoSpace || e.Cause == TimedOut
}

// refused returns an error without the installer's output.
func (b *build) refused(cause Cause, format string, args ...any) error {
	return &Error{Cause: cause, Tool: b.with.String(), Words: clean(fmt.Sprintf(format, args...))}
}

// explain returns an *Error with the cause and the last lines of an installer that failed with err.
func (b *build) explain(ctx context.Context, err error, lines []string) error {
	if len(lines) == 0 {
		lines = []string{err.Error()}
	}
	for n, line := range lines {
		lines[n] = strings.ReplaceAll(line, b.Work+"/", "") // it is removed with the build
	}
	e := &Error{Tool: b.with.String(), Lines: lines}
	if ctx.Err() != nil {
		e.Cause, e.Words = TimedOut, "the environment was not built in time"
		return e
	}
	if isFull(lines) {
		e.Cause, e.Words = NoSpace, "the disk is full"
		return e
	}
	if host, err := b.unreachable(ctx); err != nil {
		e.Cause, e.Words = Unreachable, clean(fmt.Sprintf("%s did not answer as it should: %v", host, err))
		return e
	}
	if b.Requirements.Hashed {
		e.Cause = Locked
	}
	e.Words = fmt.Sprintf("%s failed for %s", e.Tool, b.wanted())
	return e
}

// isFull reports whether uv printed the system's error of a full disk (as Rust writes it).
func isFull(lines []string) bool {
	text := strings.Join(lines, " ")
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if strings.Contains(text, fmt.Sprintf("(os error %d)", int(errno))) {
			return true
		}
	}
	return false
}

// wanted describes the request without the requirements: "CPython 3.11 on linux-x86_64, from wheels alone".
func (b *build) wanted() string {
	text := strings.TrimSpace(fmt.Sprintf("%s %s on %s", b.Python.Name(), b.Python.Minor, b.Python.Platform)) +
		", from wheels alone"
	if b.Sources.Offline {
		text += ", without an index (offline)"
	}
	return text
}
