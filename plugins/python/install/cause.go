// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
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
	RefusedHost              // an index sent the installer to a host that is not allowed
	Malicious                // a package changed the environment itself
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
	return &Error{Cause: cause, Tool: b.with.Tool(b.Python), Words: clean(fmt.Sprintf(format, args...))}
}

// explain returns an *Error with the cause and the last lines of an installer that failed with err.
func (b *build) explain(ctx context.Context, err error, lines []string) error {
	if len(lines) == 0 {
		lines = []string{err.Error()}
	}
	for n, line := range lines {
		lines[n] = strings.ReplaceAll(line, b.Work+"/", "") // it is removed with the build
	}
	e := &Error{Tool: b.with.Tool(b.Python), Lines: lines}
	if ctx.Err() != nil {
		e.Cause, e.Words = TimedOut, "the environment was not built in time"
		return e
	}
	switch errnoOf(lines) {
	case syscall.ENOSPC, syscall.EDQUOT:
		e.Cause, e.Words = NoSpace, "the disk is full"
		return e
	case syscall.EFBIG:
		e.Cause, e.Words = TooLarge, fmt.Sprintf(
			"a file of the packages is larger than the %d MiB that an environment may take on this node", b.MaxSize>>20)
		return e
	}
	if refused := b.proxy.Refused(); len(refused) > 0 {
		e.Cause, e.Words = RefusedHost, fmt.Sprintf("the index sends the installer to %.1000s, where it may not go: "+
			"the operator of the node can allow that by allowed_hosts", strings.Join(refused, ", "))
	} else if host, err := b.proxy.Failed(ctx, b.Sources); err != nil {
		e.Cause, e.Words = Unreachable, b.access.Redact(clean(fmt.Sprintf("%s did not answer as it should: %v", host, err)))
	} else {
		if b.Requirements.Hashed {
			e.Cause = Locked
		}
		e.Words = fmt.Sprintf("%s failed for %s", e.Tool, b.wanted())
	}
	return e
}

// errnos are numbers of system errors, as Python and Rust write them.
var errnos = regexp.MustCompile(`\[Errno (\d+)\]|\(os error (\d+)\)`)

// errnoOf is the first error of a full disk or of the limit of files that a tool printed, 0 without one.
func errnoOf(lines []string) syscall.Errno {
	for _, m := range errnos.FindAllStringSubmatch(strings.Join(lines, " "), -1) {
		n, _ := strconv.Atoi(m[1] + m[2])
		switch e := syscall.Errno(n); e {
		case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG:
			return e
		}
	}
	return 0
}

// wanted describes the request without the requirements: "CPython 3.11 on linux-x86_64, from wheels alone
// (allow_sdists)".
func (b *build) wanted() string {
	text := strings.TrimSpace(fmt.Sprintf("%s %s on %s", b.Python.Name(), b.Python.Minor, b.Python.Platform))
	if !b.AllowSdists {
		text += ", from wheels alone (allow_sdists)"
	}
	if b.Sources.Offline {
		text += ", without an index (offline)"
	}
	return text
}
