// Package install makes virtual environments with uv or pip, as a user that has no
// other rights on the node, from nowhere but the indexes it is told.
package install

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// Installer is a program that installs packages. The zero value is none.
type Installer struct {
	Name    string // "uv" or "pip"
	Version string
	UV      string                  // the program, of uv
	Python  interpreter.Interpreter // of pip: the interpreter that runs it, if the environment's own has no pip
}

// Find returns the installer to use. want is "auto", "uv" or "pip", uv the configured program or
// empty. The error says what to install on the node.
func Find(ctx context.Context, want, uv string, as *syscall.Credential, found []interpreter.Interpreter) (Installer, error) {
	return Installer{}, nil
}

// Request is an environment to make.
type Request struct {
	Python       interpreter.Interpreter
	Requirements *requirement.Set
	Indexes      requirement.Indexes // with absolute directories; URL is never empty unless Offline
	AllowedHosts []string            // besides those of Indexes and of Requirements.URLs
	AllowSdists  bool

	// Dir is where the environment is made, a directory that does not exist and whose parent As may
	// write to, and Final where it will be when it is used.
	Dir, Final string

	// Work is a directory for temporary files, As may write to it. Downloads keeps
	// what was downloaded for the next time; "" keeps nothing.
	Work, Downloads string

	// As is who runs the installer, nil for this process's user.
	As *syscall.Credential

	// Progress hears what the installer does, some words each time. May be nil.
	Progress func(string)
}

// Result tells what was made.
type Result struct {
	Packages []string // "requests 2.31.0", sorted
	Took     time.Duration
}

// Install makes the environment: virtual environment, packages, bytecode. The files are
// still their builder's. When ctx ends, or this process is killed, the installer and all it started is
// killed too. The error is an *Error where the installer failed.
func (i Installer) Install(ctx context.Context, r Request) (*Result, error) { return nil, nil }

// Export makes a Set of a project that uv locked (Set.UVLock), for the interpreter.
func (i Installer) Export(ctx context.Context, r Request) (*requirement.Set, error) { return nil, nil }

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
