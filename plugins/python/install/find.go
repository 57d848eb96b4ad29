// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Python is an interpreter of the node, or one that uv can install there.
type Python struct {
	Path           string `json:"path"` // without symbolic links; "" if it is not installed
	Version        string `json:"version"`
	Implementation string `json:"implementation"` // "cpython", "pypy"
	Key            string `json:"key"`            // uv's name for it: "cpython-3.11.2-linux-x86_64-gnu"
	Variant        string `json:"variant"`        // "default", "freethreaded"
	File           string `json:"file"`           // identity(Path)
}

// String returns implementation and version: "cpython 3.11.2".
func (p Python) String() string { return p.Implementation + " " + p.Version }

// release reports whether p is a released CPython of the default variant: most packages have wheels only for these.
func (p Python) release() bool {
	return p.Implementation == "cpython" && p.Variant == "default" && !strings.ContainsAny(p.Version, "abr")
}

// rank returns the primary sort key of Pythons: lower for preferred interpreters.
func (p Python) rank() int {
	switch {
	case p.Path == "":
		return 2
	case !p.release():
		return 1
	}
	return 0
}

const (
	// listAgain is how long a listing is used. An interpreter may begin to work without a change of its file.
	listAgain = 10 * time.Minute
	// maxListings is the maximum number of cached listings.
	maxListings = 100
)

// Pythons returns the interpreters that match a request in uv's syntax (such as ">=3.11", "pypy"; "" matches all):
// installed ones first, CPython before others, releases before pre-releases, and then the newest first. The caller must
// validate the request: uv also accepts paths, and runs the program there. Pythons runs uv if a directory or an
// interpreter has changed since the last listing, or the listing is ten minutes old.
func (f *Finder) Pythons(ctx context.Context, request string) ([]Python, error) {
	return alone(ctx, f, func() ([]Python, error) { return f.pythons(ctx, request) })
}

func (f *Finder) pythons(ctx context.Context, request string) ([]Python, error) {
	uv, err := f.find(ctx)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, pattern := range f.dirs {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("failed to look for interpreters at %q: %w", pattern, err)
		}
		dirs = append(dirs, found...)
	}
	places := uv.String() + f.file
	for _, dir := range dirs {
		places += "\n" + dir + " " + identity(dir)
	}
	changed := func(p Python) bool { return p.Path != "" && identity(p.Path) != p.File }
	if places != f.places || time.Since(f.asked) > listAgain || slices.ContainsFunc(f.listings[request], changed) {
		f.places, f.asked, f.listings = places, time.Now(), map[string][]Python{}
	}
	if known, ok := f.listings[request]; ok {
		return known, nil
	}
	pythons, err := f.list(ctx, uv, dirs, request)
	if err != nil {
		return nil, err
	}
	if len(f.listings) >= maxListings {
		clear(f.listings)
	}
	f.listings[request] = pythons
	return pythons, nil
}

func (f *Finder) list(ctx context.Context, uv Installer, dirs []string, request string) ([]Python, error) {
	// uv searches the PATH, and finds nothing elsewhere: neither HOME nor uv's own directory of interpreters exists
	env := []string{"PATH=" + strings.Join(dirs, ":"), "HOME=/nonexistent", "LANG=C.UTF-8",
		"UV_PYTHON_INSTALL_DIR=/nonexistent"}
	argv := []string{uv.Path, "python", "list", "--all-versions", "--output-format", "json", "--no-config", "--no-cache"}
	if !f.Downloads {
		argv = append(argv, "--only-installed")
	}
	if request != "" {
		argv = append(argv, request)
	}
	out, err := f.ask(ctx, env, argv...)
	var all, pythons []Python
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	if err != nil {
		return nil, fmt.Errorf("uv python list failed: %w", err)
	}
	for _, p := range all {
		if p.Path == "" && p.release() {
			pythons = append(pythons, p)
			continue
		}
		path, err := filepath.EvalSymlinks(p.Path)
		if err != nil { // just removed
			continue
		}
		if slices.ContainsFunc(pythons, func(other Python) bool { return other.Path == path }) {
			continue
		}
		p.Path, p.File = path, identity(path)
		pythons = append(pythons, p)
	}
	slices.SortStableFunc(pythons, func(a, b Python) int { return cmp.Compare(a.rank(), b.rank()) })
	return pythons, nil
}

// usualDirs are the usual directories of interpreters: the distribution's, /usr/local, /opt, and those of uv and pyenv,
// for all users or for this process's user.
func usualDirs() []string {
	dirs := []string{"/usr/bin", "/usr/local/bin", "/opt/python/*/bin", "/opt/pypy*/bin", "/opt/pyenv/versions/*/bin",
		"/usr/local/share/uv/python/*/bin"}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, home+"/.local/share/uv/python/*/bin", home+"/.pyenv/versions/*/bin")
	}
	return dirs
}

// Finder finds the node's uv, and uses it to find the node's interpreters. It is safe for concurrent use.
type Finder struct {
	// Downloads makes Pythons also return releases of CPython that uv can install.
	Downloads bool

	uv      string              // the configured path; "": uv is found on the agent's PATH
	dirs    []string            // patterns (filepath.Match) of directories with interpreters
	as      *syscall.Credential // the user that runs uv and interpreters, nil for this process's user
	timeout time.Duration

	turn     chan struct{} // a lock with timeouts: full while a call uses the fields below (see alone)
	found    Installer
	file     string              // identity(found.Path)
	listings map[string][]Python // cached output of uv python list, by request
	places   string              // uv and the directories that were listed, with their identities
	asked    time.Time           // when the first of these listings was made
}

// NewFinder returns a Finder that has not searched yet. Without patterns, it searches the usual directories. The user
// that runs uv should have no more rights than tasks, so that tasks can run each interpreter that the Finder finds.
func NewFinder(uv string, dirs []string, as *syscall.Credential) *Finder {
	if len(dirs) == 0 {
		dirs = usualDirs()
	}
	// a minute: uv is fast, but it runs each interpreter, and the node may be overloaded
	return &Finder{uv: uv, dirs: dirs, as: as, timeout: time.Minute, turn: make(chan struct{}, 1)}
}

// Find returns the cached uv if its file has not changed, and searches otherwise. The error names what to install on
// the node, or is a temporary *Error if a program was found but could not be run.
func (f *Finder) Find(ctx context.Context) (Installer, error) {
	return alone(ctx, f, func() (Installer, error) { return f.find(ctx) })
}

// alone calls the function look as soon as no other such call runs. If an interpreter is on a network file system whose
// server is down, the call hangs: alone returns when ctx ends, or with a temporary *Error after three times f.timeout.
// The next call begins only after the hung call has ended.
func alone[T any](ctx context.Context, f *Finder, look func() (T, error)) (none T, err error) {
	type result struct {
		found T
		err   error
	}
	turn, ended, limit := f.turn, make(chan result, 1), 3*f.timeout
	dirs := strings.Join(f.dirs, ", ")
	for {
		select {
		case turn <- struct{}{}:
			turn = nil
			go func() {
				found, err := look()
				ended <- result{found, err}
				<-f.turn
			}()
		case r := <-ended:
			return r.found, r.err
		case <-ctx.Done():
			return none, fmt.Errorf("the search for interpreters in %s did not end: %w", dirs, ctx.Err())
		case <-time.After(limit):
			return none, &Error{Temporary: true, Words: fmt.Sprintf("the search for interpreters in %s did not end within %s: "+
				"a file system hangs, or the node is overloaded", dirs, limit)}
		}
	}
}

// find is Find without the lock: only functions that alone calls may use it.
func (f *Finder) find(ctx context.Context) (Installer, error) {
	path := f.uv
	if path == "" {
		path, _ = exec.LookPath("uv")
	}
	file := identity(path)
	if file == "" || !filepath.IsAbs(path) {
		return Installer{}, fmt.Errorf("found no uv (option uv = %q; \"\" searches the agent's PATH): install uv "+
			"(pip install uv), or set the option to its path", f.uv)
	}
	if f.found.Path == path && f.file == file {
		return f.found, nil
	}
	// an error of this call is temporary: the node may be overloaded, or the program is being installed
	env := []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "UV_NO_CONFIG=1"}
	out, err := f.ask(ctx, env, path, "--version")
	if err != nil && ctx.Err() == nil {
		err = &Error{Words: fmt.Sprintf("the build user can't run %s: %v", path, err), Temporary: true}
	}
	words := strings.Fields(out)
	switch {
	case err != nil:
		return Installer{}, err
	case len(words) < 2 || words[0] != "uv":
		return Installer{}, fmt.Errorf("%s is not uv: it prints %.80q for --version", path, strings.TrimSpace(out))
	case tooOld(words[1]):
		return Installer{}, fmt.Errorf("%s is uv %s, but the oldest supported version is %d.%d.%d: upgrade uv", path,
			words[1], oldest[0], oldest[1], oldest[2])
	}
	f.found, f.file = Installer{Path: path, Version: words[1]}, file
	return f.found, nil
}

// identity returns a string that changes when the file is changed or replaced. It is "" if the file does not exist.
func identity(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino, info.Size(), info.ModTime().UnixNano())
}

// oldest is the oldest version of uv with which this plugin's tests pass.
var oldest = []int{0, 6, 14}

func tooOld(version string) bool {
	var major, minor, patch int
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch) // missing parts count as 0
	return slices.Compare([]int{major, minor, patch}, oldest) < 0
}
