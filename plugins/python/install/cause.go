package install

import (
	"fmt"
	"strings"
)

// Cause is why an installer failed, where something other than its own words tells.
type Cause int

const (
	Unknown     Cause = iota // its last lines are what is known
	Unreachable              // an index did not answer: it may later, or on another node
	NoSpace                  // the disk is full
	TimedOut                 // ctx ended
	NoWheel                  // a source is named by its URL, and sdists are not allowed
	RefusedHost              // an index sent the installer to a host that is not allowed
	Malicious                // a package installed what leads out of the environment
	TooLarge                 // the packages are larger than an environment may be
)

// Error is an installer's failure.
type Error struct {
	Cause Cause
	Tool  string   // "uv 0.8.13"
	Words string   // one sentence for the job's author
	Lines []string // the installer's last lines, without credentials

	// Refused is of a file with another hash or of credentials that an index does not take: another interpreter must not
	// be tried, or who can spoil a file chooses it.
	Refused bool
}

func (e *Error) Error() string {
	if e.Cause == Unknown {
		return e.Words // which has them
	}
	return e.Words + e.LastLines()
}

// LastLines are the installer's, to go on with after other words; "" without any.
func (e *Error) LastLines() string {
	if len(e.Lines) == 0 {
		return ""
	}
	return fmt.Sprintf(" (the last lines of %s: %s)", e.Tool, e.said())
}

// said are the installer's last lines in one, as Nomad's events have no more.
func (e *Error) said() string {
	const head, tail = 500, 300 // what it is about comes first, and the exception of a traceback last
	text := flat(e.Lines)
	if len(text) > head+tail {
		text = strings.ToValidUTF8(text[:head], "") + " … " + strings.ToValidUTF8(text[len(text)-tail:], "")
	}
	return text
}

// flat is a tool's lines as one, without the frames that uv draws.
func flat(lines []string) string {
	text := strings.NewReplacer("│", " ", "├─▶", " ", "╰─▶", " ", "×", " ").Replace(strings.Join(lines, " "))
	return strings.Join(strings.Fields(text), " ")
}

// Temporary says whether the same may succeed later or elsewhere.
func (e *Error) Temporary() bool {
	return e.Cause == Unreachable || e.Cause == NoSpace || e.Cause == TimedOut
}
