// Package interpreter finds the Python interpreters of a node, and chooses among them.
package interpreter

import (
	"context"
	"syscall"

	"github.com/outrider-dev/outrider/plugins/python/pep440"
)

// Interpreter is one that was found and has answered.
type Interpreter struct {
	Path           string `json:"path"`           // as it was found: what tasks are started with
	Real           string `json:"real"`           // without symbolic links
	Version        string `json:"version"`        // "3.11.2", "3.13.0rc1"
	Minor          string `json:"minor"`          // "3.11"
	Implementation string `json:"implementation"` // "cpython", "pypy" (sys.implementation.name)
	Full           string `json:"full"`           // sys.version, which has the build
	ABI            string `json:"abi"`            // SOABI: "cpython-311-x86_64-linux-gnu"
	Platform       string `json:"platform"`       // sysconfig.get_platform(): "linux-x86_64"
	Libc           string `json:"libc"`           // "glibc 2.36"
	FreeThreaded   bool   `json:"free_threaded"`  // built without the GIL

	// Pip is how this interpreter runs pip: the arguments that come before those of
	// pip itself, ["-m", "pip"] or ["/usr/share/python-wheels/pip-23.0.1-py3-none-any.whl/pip"];
	// nil where it has none. PipVersion is that pip's.
	Pip        []string `json:"pip,omitempty"`
	PipVersion string   `json:"pip_version,omitempty"`

	// File is that of Real when it was asked: another inode, size or time is
	// another interpreter.
	File FileID `json:"file"`
}

// FileID tells whether a file is still the same.
type FileID struct {
	Inode   uint64 `json:"inode"`
	Size    int64  `json:"size"`
	ModTime int64  `json:"mod_time"` // nanoseconds since 1970
}

// Finder finds the interpreters of the node. It is safe for concurrent use.
type Finder struct {
	// Globs are where interpreters may be (filepath.Match), nil is DefaultGlobs.
	Globs []string

	// As is who asks them, nil for this process's user. An interpreter that it
	// can't run is none that tasks could use.
	As *syscall.Credential
}

// Find returns the interpreters, the best to use by default first: CPython with a GIL
// before others, releases before pre-releases, and then the newest. Each is run once; again when its file
// has changed. What can't be run is left out; Rejected tells of it.
func (f *Finder) Find(ctx context.Context) ([]Interpreter, error) { return nil, nil }

// Rejected says why files that match are not among the interpreters, one sentence each.
func (f *Finder) Rejected() []string { return nil }

// Choose returns the best interpreter of those found whose version is in all wanted sets. Of a
// path, it is the one at that path. The error is a *NoneFitsError.
func Choose(found []Interpreter, path string, wanted pep440.Specifier) (Interpreter, error) {
	return Interpreter{}, &NoneFitsError{Wanted: wanted, Path: path, Found: found}
}

// NoneFitsError says which interpreters there are, and which constraint keeps the job from such nodes.
type NoneFitsError struct {
	Wanted pep440.Specifier
	Path   string
	Found  []Interpreter
}

func (e *NoneFitsError) Error() string { return "" }
