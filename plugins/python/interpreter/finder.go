// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/process"
)

// Finder finds the interpreters of the node by uv. It is safe for concurrent use.
type Finder struct {
	// Globs are where interpreters may be (filepath.Match), nil is defaultGlobs. A wildcard matches names of interpreters
	// only ("python3.12", "pypy3").
	Globs []string

	// As is the user that runs them, nil for this process's. It should have no more rights than tasks, so that each
	// interpreter found can be run by them.
	As *syscall.Credential

	// UV returns the path of uv.
	UV func(context.Context) (string, error)

	listing chan struct{} // a semaphore
	last    atomic.Pointer[search]
}

// search is the result of one.
type search struct {
	files string // the candidates and their identities
	at    time.Time
	found Found
}

// answers reports whether the result, which may be nil, holds for these files.
func (s *search) answers(files string, again bool) bool {
	return s != nil && s.files == files && (!again || time.Since(s.at) < listAgain)
}

// NewFinder returns a Finder that has not searched yet.
func NewFinder(globs []string, as *syscall.Credential, uv func(context.Context) (string, error)) *Finder {
	return &Finder{Globs: globs, As: as, UV: uv, listing: make(chan struct{}, 1)}
}

const (
	// listAgain is the time after which uv is asked again: an interpreter may work though its file has not changed.
	listAgain = 10 * time.Minute
	// listTimeout is how long uv may take: it runs each interpreter.
	listTimeout = time.Minute
)

// Found is the result of a search.
type Found struct {
	// Interpreters are in the order of preference: CPython with a GIL before others, releases before pre-releases, and
	// then the newest first. Several names of one file are one interpreter.
	Interpreters []Interpreter

	// Rejected has a sentence for each file that matches and is not used, such as one of a virtual environment.
	Rejected []string
}

// Find returns the interpreters. uv runs them only if a file was added, changed or removed since.
func (f *Finder) Find(ctx context.Context) (Found, error) { return f.find(ctx, false) }

// Renew is Find, and asks uv again if that is a while ago. Call it periodically.
func (f *Finder) Renew(ctx context.Context) (Found, error) { return f.find(ctx, true) }

func (f *Finder) find(ctx context.Context, again bool) (Found, error) {
	candidates, err := f.candidates()
	if err != nil {
		return Found{}, err
	}
	files := ""
	for _, c := range candidates {
		files += fmt.Sprintln(c.path, c.real, c.file, c.err)
	}
	if last := f.last.Load(); last.answers(files, again) {
		return last.found, nil
	}
	select {
	case f.listing <- struct{}{}:
	case <-ctx.Done():
		return Found{}, ctx.Err()
	}
	defer func() { <-f.listing }()
	last := f.last.Load()
	if last.answers(files, again) { // another has just searched
		return last.found, nil
	}
	found, err := f.list(ctx, candidates)
	if err != nil && ctx.Err() == nil && last.answers(files, false) { // the node may be overloaded
		found, err = last.found, nil
	}
	if err != nil {
		return Found{}, err
	}
	f.last.Store(&search{files, time.Now(), found})
	return found, nil
}

// candidate is a path that a glob matches.
type candidate struct {
	path, real string
	file       FileID
	err        error // why it can't be looked at
}

// errNoFile is that of a glob.
var errNoFile = errors.New("matches no file that is named as an interpreter")

// candidates are what the globs match, in their order, each once.
func (f *Finder) candidates() ([]candidate, error) {
	globs := f.Globs
	if globs == nil {
		globs = defaultGlobs()
	}
	var found []candidate
	for _, glob := range globs {
		paths, err := matching(glob)
		if err != nil {
			return nil, fmt.Errorf("failed to look for interpreters at %q: %w", glob, err)
		}
		if len(paths) == 0 && f.Globs != nil {
			found = append(found, candidate{path: glob, err: errNoFile})
		}
		for _, path := range paths {
			path = filepath.Clean(path)
			if slices.ContainsFunc(found, func(c candidate) bool { return c.path == path }) {
				continue
			}
			c := candidate{path: path}
			c.real, c.file, c.err = lookAt(path)
			found = append(found, c)
		}
	}
	return found, nil
}

// lookAt is the target of a path, and its identity.
func lookAt(path string) (real string, file FileID, err error) {
	real, err = filepath.EvalSymlinks(path)
	if err != nil {
		return "", FileID{}, err
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", FileID{}, err
	}
	if !info.Mode().IsRegular() {
		return "", FileID{}, errors.New("it is not a regular file")
	}
	st := info.Sys().(*syscall.Stat_t)
	return real, FileID{Inode: st.Ino, Size: info.Size(), ModTime: info.ModTime().UnixNano()}, nil
}

// listed is an interpreter of uv python list.
type listed struct {
	Path           string `json:"path"`
	Version        string `json:"version"`
	Implementation string `json:"implementation"`
	Variant        string `json:"variant"`
	OS             string `json:"os"`
	Arch           string `json:"arch"`
	Libc           string `json:"libc"`
}

// list asks uv which of the candidates are interpreters.
func (f *Finder) list(ctx context.Context, candidates []candidate) (Found, error) {
	var dirs []string
	for _, c := range candidates {
		if dir := filepath.Dir(c.path); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	uv, err := f.UV(ctx)
	if err != nil || len(dirs) == 0 {
		return Found{}, err
	}
	// uv looks along the PATH; without a home it has no interpreters but these
	env := []string{"PATH=" + strings.Join(dirs, ":"), "HOME=/nonexistent", "LANG=C.UTF-8",
		"UV_PYTHON_INSTALL_DIR=/nonexistent"}
	out, complaints, err := process.Ask(ctx, listTimeout, f.As, env, uv, "python", "list", "--only-installed",
		"--all-versions", "--output-format", "json", "--no-config", "--no-cache", "--no-python-downloads")
	var all []listed
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	if err != nil {
		return Found{}, fmt.Errorf("uv python list failed: %w%s", err, lastLine(complaints))
	}
	return f.choose(candidates, all), nil
}

// choose groups the candidates by their file, those that uv lists first.
func (f *Finder) choose(candidates []candidate, all []listed) Found {
	var result Found
	at := map[string]int{} // in Interpreters, by Real
	listedAs := func(c candidate) int {
		return slices.IndexFunc(all, func(l listed) bool { return l.Path == c.path })
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		return cmp.Compare(min(listedAs(b), 0), min(listedAs(a), 0))
	})
	for _, c := range candidates {
		is := listedAs(c)
		if n, ok := at[c.real]; ok && !inVirtualEnvironment(c.path) { // uv lists not all names of some
			result.Interpreters[n].Names = append(result.Interpreters[n].Names, c.path)
			continue
		}
		if is < 0 || !usable(all[is].Version) {
			result.Rejected = append(result.Rejected, f.why(c, all, is))
			continue
		}
		l := all[is]
		at[c.real] = len(result.Interpreters)
		result.Interpreters = append(result.Interpreters, Interpreter{
			Real: c.real, Names: []string{c.path}, File: c.file,
			Version: l.Version, Minor: minor(l.Version), Implementation: l.Implementation,
			Platform: l.OS + "-" + l.Arch, Libc: l.Libc, FreeThreaded: strings.Contains(l.Variant, "freethreaded"),
		})
	}
	for n := range result.Interpreters {
		i := &result.Interpreters[n]
		i.Path = preferred(i.Names, i.Real)
	}
	slices.SortStableFunc(result.Interpreters, byDefault)
	return result
}

func inVirtualEnvironment(path string) bool {
	_, err := os.Lstat(filepath.Join(filepath.Dir(path), "../pyvenv.cfg"))
	return err == nil
}

// oldestMinor is the minor version of the oldest Python that is used.
const oldestMinor = 8

func usable(version string) bool {
	return CompareVersions(version, fmt.Sprintf("3.%d.0a0", oldestMinor)) >= 0 && CompareVersions(version, "4.0.0a0") < 0
}

// minor is "3.11" of "3.11.2" and of "3.11.0rc1".
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// why is the reason why a candidate is not used.
func (f *Finder) why(c candidate, all []listed, is int) string {
	var at *fs.PathError
	switch {
	case errors.Is(c.err, errNoFile):
		return fmt.Sprintf("%s %v", c.path, c.err)
	case errors.As(c.err, &at):
		return fmt.Sprintf("%s can't be used: %v", c.path, at.Err)
	case c.err != nil:
		return fmt.Sprintf("%s can't be used: %v", c.path, c.err)
	case is >= 0:
		return fmt.Sprintf("%s is Python %s, and 3.%d or later is used", c.path, all[is].Version, oldestMinor)
	}
	return fmt.Sprintf("%s is no interpreter for uv: it can't be run by the build user, or is of a virtual environment",
		c.path)
}

// lastLine is the last line of an output, to append to an error.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	return fmt.Sprintf(": %.200s", text[strings.LastIndexByte(text, '\n')+1:])
}
