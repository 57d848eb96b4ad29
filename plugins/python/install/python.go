// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Python is an interpreter of the node.
type Python struct {
	Path           string `json:"path"` // without symbolic links
	Version        string `json:"version"`
	Implementation string `json:"implementation"` // "cpython", "pypy"
	Key            string `json:"key"`            // uv's name for it: "cpython-3.11.2-linux-x86_64-gnu"
	Variant        string `json:"variant"`        // "default", "freethreaded"

	Names []string `json:"-"`    // the paths at which uv found it
	File  string   `json:"file"` // the identity of the file at Path
}

// String is the interpreter for people: "CPython 3.11.2", "PyPy 3.9.16".
func (p Python) String() string {
	name, ok := map[string]string{"cpython": "CPython", "pypy": "PyPy"}[p.Implementation]
	if !ok {
		name = p.Implementation
	}
	if p.Variant == "freethreaded" {
		name += " (free-threaded)"
	}
	return name + " " + p.Version
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

// holds reports whether nothing has changed since.
func (l listing) holds(places string) bool {
	changed := func(p Python) bool { return identity(p.Path) != p.File }
	return l.places == places && !slices.ContainsFunc(l.pythons, changed)
}

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
	holds := last.holds(places)
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
		same := slices.IndexFunc(pythons, func(other Python) bool { return other.Path == path })
		if same >= 0 {
			pythons[same].Names = append(pythons[same].Names, p.Path)
			continue
		}
		p.Path, p.File, p.Names = path, identity(path), []string{p.Path}
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
