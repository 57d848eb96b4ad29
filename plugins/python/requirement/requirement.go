// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package requirement reads the requirements of a Python program from lists, requirements files, projects, scripts and
// lock files. The result is one canonical form. Installers accept more than it allows: paths of the node, options,
// variables of the environment and builds from source are refused.
package requirement

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// Set is a set of requirements, ready for an installer.
type Set struct {
	// Lines are requirements as in a requirements file, canonical, sorted, each once:
	// "requests[socks]==2.31.0 ; python_version < \"3.13\" --hash=sha256:…".
	Lines []string

	// Constraints bound versions of packages that the requirements depend on, in the same form.
	Constraints []string

	// Hashed: each line has hashes, which the installer must insist on.
	Hashed bool

	// Complete: this is a lock, and nothing else is to be installed.
	Complete bool

	// RequiresPython is the specifier of a lock or project for the interpreter (PEP 440).
	RequiresPython string

	// Indexes are those that the file names; empty where it names none.
	Indexes index.Sources

	// URLs are of requirements and constraints that name their file ("name @ https://…").
	URLs []string

	// UVLock is set for a uv.lock: except RequiresPython and Indexes the other fields are empty, and uv has to export
	// them.
	UVLock *UVLock
}

// UVLock is a project that uv locked.
type UVLock struct {
	Lock    []byte
	Project []byte // its pyproject.toml or, if Script, the script
	Script  bool
	Choice  Choice // which the project has
}

// Reader reads a file of the task by the name the job has for it.
type Reader func(name string) ([]byte, error)

// List reads requirements that are written one by one, each with its hashes if it has any. An error has the number of
// the requirement.
func List(lines []string) (*Set, error) {
	var f files
	for i, l := range lines {
		at := place{line: i + 1}
		if strings.ContainsAny(l, "\r\n") {
			return nil, at.failed(errors.New("it has several lines: write each requirement by itself"))
		}
		if l = strings.TrimSpace(l); l == "" || l[0] == '#' {
			return nil, at.failed(errors.New("it is empty: remove it"))
		}
		if l[0] == '-' {
			return nil, at.failed(fmt.Errorf("%s is an option, which only files have: "+
				"write a requirements file, or use the options of the task", show(l)))
		}
		if len(lines) > maxLines || len(l) > maxFile {
			return nil, at.failed(errors.New("there is more than a program can require"))
		}
		if err := f.line(at, l, false); err != nil {
			return nil, err
		}
	}
	return f.set()
}

// File reads a requirements file and those that it includes, whose names are relative to it. An error is one sentence
// with file and line.
func File(name string, read Reader) (*Set, error) {
	f := files{read: read}
	if err := f.file(path.Clean(name), false); err != nil {
		return nil, err
	}
	return f.set()
}

// Lock is Choice.Lock without a choice.
func Lock(name string, read Reader) (*Set, error) { return Choice{}.Lock(name, read) }

// Lock reads a lock file: by its name a pylock.toml (pylock.NAME.toml), a uv.lock or SCRIPT.py.lock of uv, or otherwise
// a requirements file in which each requirement has a version and hashes.
func (c Choice) Lock(name string, read Reader) (*Set, error) {
	name = path.Clean(name)
	switch base := path.Base(name); {
	case pylockName.MatchString(base):
		return c.readPylock(name, read)
	case path.Ext(base) == ".toml":
		return nil, fmt.Errorf("lock %s must be called pylock.toml or pylock.NAME.toml", name)
	case base == "uv.lock":
		return c.readUVLock(name, read)
	case slices.Contains([]string{"poetry.lock", "pdm.lock", "Pipfile.lock", "conda-lock.yml"}, base):
		return nil, fmt.Errorf("lock %s is its tool's own: export it as pylock.toml, or as a requirements file with hashes",
			name)
	case !c.empty():
		return nil, fmt.Errorf("lock %s has no extras and groups to choose: "+
			"only a uv.lock and a pylock.toml have", name)
	case strings.HasSuffix(base, ".py.lock"):
		return c.readUVLock(name, read)
	}
	f := files{read: read, insist: true}
	if err := f.file(name, false); err != nil {
		return nil, err
	}
	s, err := f.set()
	if err != nil {
		return nil, err
	}
	s.Complete = true
	return s, nil
}

// Join is the union of two sets; either may be nil. It is an error if only one has hashes, or if one is a lock of uv.
func (s *Set) Join(other *Set) (*Set, error) {
	s, other = cmp.Or(s, &Set{}), cmp.Or(other, &Set{})
	empty := len(s.Lines) == 0 || len(other.Lines) == 0
	switch {
	case s.UVLock != nil && !other.Empty(), other.UVLock != nil && !s.Empty():
		return nil, errors.New("a lock and other requirements exclude each other: lock them together")
	case !empty && s.Hashed != other.Hashed:
		return nil, errors.New("some requirements have hashes and some have none: " +
			"the program's own metadata and the job's requirements must both have them, or neither")
	case s.Indexes.URL != "" && other.Indexes.URL != "" && s.Indexes.URL != other.Indexes.URL:
		return nil, errors.New("two package indexes are named: write --extra-index-url for one of them")
	}
	joined := &Set{
		Lines:          slices.Concat(s.Lines, other.Lines),
		Constraints:    slices.Concat(s.Constraints, other.Constraints),
		URLs:           slices.Concat(s.URLs, other.URLs),
		Hashed:         s.Hashed || other.Hashed,
		Complete:       s.Complete && other.Empty() || other.Complete && s.Empty() || s.Complete && other.Complete,
		RequiresPython: and(s.RequiresPython, other.RequiresPython),
		Indexes: index.Sources{
			URL:       cmp.Or(s.Indexes.URL, other.Indexes.URL),
			Extra:     each(s.Indexes.Extra, other.Indexes.Extra),
			FindLinks: each(s.Indexes.FindLinks, other.Indexes.FindLinks),
			Offline:   s.Indexes.Offline || other.Indexes.Offline,
		},
		UVLock: cmp.Or(s.UVLock, other.UVLock),
	}
	joined.sort()
	return joined, nil
}

// and is the specifier of the versions that all specifiers allow.
func and(specifiers ...string) string {
	var list []string
	seen := map[string]bool{"": true}
	for _, s := range specifiers {
		for part := range strings.SplitSeq(s, ",") {
			if part = strings.TrimSpace(part); !seen[part] {
				seen[part] = true
				list = append(list, part)
			}
		}
	}
	return strings.Join(list, ",")
}

// each has each text once, in the order of their first occurrences.
func each(lists ...[]string) []string {
	var all []string
	for _, text := range slices.Concat(lists...) {
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// CheckWheels refuses URLs that do not name wheels, since nothing is built from source. Repositories and source trees are
// refused before.
func (s *Set) CheckWheels() error {
	for _, text := range s.URLs {
		if u, err := url.Parse(text); err != nil || !strings.HasSuffix(u.Path, ".whl") {
			return fmt.Errorf("%s is not the URL of a wheel, and nothing is built from source here: build a wheel of it, "+
				"and name its URL", show(text))
		}
	}
	return nil
}

// Empty reports whether nothing is to be installed.
func (s *Set) Empty() bool { return s == nil || len(s.Lines) == 0 && s.UVLock == nil }
