package install

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Cause is why an installer failed.
type Cause int

const (
	Unknown      Cause = iota
	Unreachable        // an index did not answer: it may later, or on another node
	NoSpace            // the disk is full
	TimedOut           // ctx ended
	NotFound           // no such package or version
	Conflict           // the requirements contradict each other
	HashMismatch       // a file is not the one that was locked
	NoWheel            // there is no wheel, and sdists are not allowed
	RefusedHost        // an index sent the installer to a host that is not allowed
	Malicious          // a package wants to install outside of the environment
)

// Error is an installer's failure.
type Error struct {
	Cause Cause
	Tool  string   // "uv 0.8.13"
	Words string   // one sentence for the job's author
	Lines []string // the installer's last lines, without credentials
}

func (e *Error) Error() string { return fmt.Sprint(e.Words) }

// Temporary says whether the same may succeed later or elsewhere.
func (e *Error) Temporary() bool {
	return e.Cause == Unreachable || e.Cause == NoSpace || e.Cause == TimedOut
}

// explain makes an *Error of what the installer said and the proxy saw.
func (b *build) explain(ctx context.Context, err error, lines []string) error {
	e := &Error{Tool: b.with.Name + " " + b.with.Version, Lines: lines[max(0, len(lines)-10):]}
	if ctx.Err() != nil {
		e.Cause, e.Words = TimedOut, "the environment was not built in time"
		if errors.Is(ctx.Err(), context.Canceled) {
			e.Words = "the environment's build was given up"
		}
		return e
	}
	e.Words = fmt.Sprintf("%s failed: %v", e.Tool, err)
	if len(lines) > 0 {
		e.Words = fmt.Sprintf("%s failed: %s", e.Tool, lines[len(lines)-1])
	}
	return e
}

var steps = regexp.MustCompile(`^\s*(Collecting|Downloading|Building|Installing|Resolved|Prepared|Installed|Successfully installed) \S`)

// progress are the words for people in a line of an installer, "" where it has none.
func progress(line string) string {
	if !steps.MatchString(line) {
		return ""
	}
	return strings.TrimSpace(line)
}
