// Package install makes virtual environments with uv or pip, as a user that has no
// other rights on the node, from nowhere but the indexes it is told.
package install

import (
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
	NoUV    error                   // of pip: why a uv that is there was not taken, nil if there is none or none was wanted
}

// Tool is what installs for an interpreter, with its version. A pip is the interpreter's own, where it has one, and
// otherwise that of another, which is named.
func (i Installer) Tool(python interpreter.Interpreter) string {
	switch {
	case i.Name == "pip" && python.Pip != nil:
		return "pip " + python.PipVersion
	case i.Name == "pip":
		return "pip " + i.Version + " of " + i.Python.Path
	}
	return i.Name + " " + i.Version
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

	// Refresh has indexes asked anew, whatever Downloads has of their pages.
	Refresh bool

	// As is who runs the installer, nil for this process's user.
	As *syscall.Credential

	// MaxSize bounds the environment, and each file that its making takes, in bytes; 0 does not.
	MaxSize int64

	// Progress hears what the installer writes, line by line. Downloaded is called from several goroutines with what
	// comes from a host, and with 0 when the host is asked. May be nil.
	Progress   func(string)                 `json:"-"`
	Downloaded func(host string, bytes int) `json:"-"`
}

// Result tells what was made.
type Result struct {
	Packages []string // "requests 2.31.0", sorted
	Warnings []string // of the installer, such as of an extra that a package has not
	Took     time.Duration
}
