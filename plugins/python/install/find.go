// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Python is an interpreter of the node.
type Python struct {
	Path           string `json:"path"` // without symbolic links
	Version        string `json:"version"`
	Implementation string `json:"implementation"` // "cpython", "pypy"
	Key            string `json:"key"`            // uv's name for it: "cpython-3.11.2-linux-x86_64-gnu"
	Variant        string `json:"variant"`        // "default", "freethreaded"
	File           string `json:"file"`           // the identity of the file at Path
}

// String is the interpreter for people: "cpython 3.11.2", "cpython 3.13.1 (freethreaded)".
func (p Python) String() string {
	text := p.Implementation + " " + p.Version
	if p.Variant != "default" {
		text += " (" + p.Variant + ")"
	}
	return text
}

// rank is lower for interpreters that most packages have wheels for.
func (p Python) rank() int {
	switch {
	case p.Implementation != "cpython" || p.Variant != "default":
		return 2
	case strings.ContainsAny(p.Version, "abr"): // a pre-release
		return 1
	}
	return 0
}

// listing is an answer of uv python list.
type listing struct {
	places  string // where it looked
	at      time.Time
	pythons []Python
}

const (
	// listAgain is the time after which uv is asked again: an interpreter may work though its file has not changed.
	listAgain = 10 * time.Minute
	// listTimeout is how long uv may take: it runs each interpreter.
	listTimeout = time.Minute
	// maxListings bounds the answers that are kept.
	maxListings = 100
)

// Pythons returns the interpreters that a request of uv means (such as ">=3.11", "pypy"; "" is all): CPython before
// others, releases before pre-releases, and then the newest first. The request must be checked: uv also takes paths,
// and runs what is there. uv is asked if a directory or an interpreter has changed since, and every ten minutes.
func (f *Finder) Pythons(ctx context.Context, request string) ([]Python, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
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
	last := f.listings[request]
	changed := func(p Python) bool { return identity(p.Path) != p.File }
	holds := last.places == places && !slices.ContainsFunc(last.pythons, changed)
	if holds && time.Since(last.at) < listAgain {
		return last.pythons, nil
	}
	pythons, err := f.list(ctx, uv, dirs, request)
	if err != nil && holds && ctx.Err() == nil { // the node may be overloaded
		return last.pythons, nil
	}
	if err != nil {
		return nil, err
	}
	if f.listings == nil || len(f.listings) >= maxListings {
		f.listings = map[string]listing{}
	}
	f.listings[request] = listing{places, time.Now(), pythons}
	return pythons, nil
}

func (f *Finder) list(ctx context.Context, uv Installer, dirs []string, request string) ([]Python, error) {
	// uv looks along the PATH; without a home it has no interpreters but these
	env := []string{"PATH=" + strings.Join(dirs, ":"), "HOME=/nonexistent", "LANG=C.UTF-8",
		"UV_PYTHON_INSTALL_DIR=/nonexistent"}
	argv := []string{uv.Path, "python", "list", "--only-installed", "--all-versions", "--output-format", "json",
		"--no-config", "--no-cache", "--no-python-downloads"}
	if request != "" {
		argv = append(argv, request)
	}
	out, err := ask(ctx, listTimeout, f.as, env, argv...)
	var all, pythons []Python
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	if err != nil {
		return nil, fmt.Errorf("uv python list failed: %w", err)
	}
	for _, p := range all {
		path, err := filepath.EvalSymlinks(p.Path)
		if err != nil { // gone meanwhile
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

// usualDirs are where interpreters usually are: those of the distribution, of /usr/local and /opt, and those that uv
// and pyenv installed, for all users or for this process's.
func usualDirs() []string {
	dirs := []string{"/usr/bin", "/usr/local/bin", "/opt/python/*/bin", "/opt/pypy*/bin", "/opt/pyenv/versions/*/bin",
		"/usr/local/share/uv/python/*/bin"}
	if dir := os.Getenv("UV_PYTHON_INSTALL_DIR"); filepath.IsAbs(dir) {
		dirs = append(dirs, dir+"/*/bin")
	}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, home+"/.local/share/uv/python/*/bin", home+"/.pyenv/versions/*/bin")
	}
	return dirs
}

// Finder finds the node's uv, and by it the node's interpreters. It is safe for concurrent use.
type Finder struct {
	uv      string              // the configured program; "" is that of the agent's PATH
	dirs    []string            // patterns (filepath.Match) of directories with interpreters
	as      *syscall.Credential // the user that runs uv and interpreters, nil for this process's
	timeout time.Duration

	mu       sync.Mutex // guards the rest, and is held while uv runs
	found    Installer
	file     string // the identity of found
	listings map[string]listing
}

// NewFinder returns a Finder that has not searched yet. Without patterns of directories it looks where interpreters
// usually are. As should have no more rights than tasks, so that they can run what it finds.
func NewFinder(uv string, dirs []string, as *syscall.Credential) *Finder {
	if len(dirs) == 0 {
		dirs = usualDirs()
	}
	// uv is quick, but the node may be overloaded
	return &Finder{uv: uv, dirs: dirs, as: as, timeout: 30 * time.Second}
}

// Find returns the uv that was found last, as long as its file is the same, and searches otherwise. The error says what
// to install on the node; it has Temporary() true if a program may be uv and could not answer now.
func (f *Finder) Find(ctx context.Context) (Installer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.find(ctx)
}

// find is for those who have the lock.
func (f *Finder) find(ctx context.Context) (Installer, error) {
	path := f.uv
	if path == "" {
		path, _ = exec.LookPath("uv")
	}
	file := identity(path)
	if file == "" || !filepath.IsAbs(path) {
		return Installer{}, fmt.Errorf("there is no uv on the agent's PATH or at the path of the option uv, %q: install it "+
			"(pip install uv)", f.uv)
	}
	if f.found.Path == path && f.file == file {
		return f.found, nil
	}
	version, err := f.version(ctx, path)
	if err != nil {
		return Installer{}, err
	}
	f.found, f.file = Installer{Path: path, Version: version}, file
	return f.found, nil
}

// identity is that of a file which was not changed, "" if it is not there.
func identity(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino, info.Size(), info.ModTime().UnixNano())
}

// version asks a program whether it is uv.
func (f *Finder) version(ctx context.Context, path string) (string, error) {
	env := []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "UV_NO_CONFIG=1"}
	out, err := ask(ctx, f.timeout, f.as, env, path, "--version")
	var late *Error
	busy := errors.Is(err, syscall.ETXTBSY) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.As(err, &late) || busy: // the node is overloaded, or the program is just being written
		return "", &Error{Words: fmt.Sprintf("whether %s is uv is not known yet: %v", path, err), temporary: true}
	case err != nil:
		return "", fmt.Errorf("the build user can't run %s: %w", path, err)
	}
	words := strings.Fields(out)
	if len(words) < 2 || words[0] != "uv" {
		return "", fmt.Errorf("%s is not uv: it answers %.80q to --version", path, strings.TrimSpace(out))
	}
	return words[1], nil
}
