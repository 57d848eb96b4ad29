// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package requirement collects what a Python program requires, for uv: from lists, requirements files, projects, the
// metadata of scripts, and locks. uv interprets them. This package refuses what would run code of a package, read other
// files of the node, or decide what the node's operator decides.
package requirement

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

// Set is a set of requirements, ready for uv.
type Set struct {
	Lines       []string // of a requirements file, with their hashes
	Constraints []string // in the same form
	Overrides   []string // in the same form
	Projects    []Project
	NewerThan   string // packages that were uploaded later are left out, "" for none (uv's exclude-newer)

	// Hashed: each line has hashes, which uv must insist on.
	Hashed bool

	// Complete: this is a lock, and nothing else is to be installed.
	Complete bool

	// RequiresPython is the specifier of a lock or project for the interpreter (PEP 440).
	RequiresPython string

	// Indexes are those that the file names; empty where it names none.
	Indexes Sources

	// Names: some requirement names a URL or an index by itself.
	Names bool

	// UVLock is set for a uv.lock: then there are no lines.
	UVLock *UVLock
}

// UVLock is a project that uv locked. uv has to export it.
type UVLock struct {
	Lock    Content
	Project Content // its pyproject.toml
	Choice  Choice
}

// Content is that of a file, and its digest in JSON.
type Content []byte

// MarshalText implements encoding.TextMarshaler.
func (c Content) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%x", sha256.Sum256(c)), nil }

// Choice is the optional parts of a project, or of its lock, that are wanted.
type Choice struct {
	Extras []string // of [project.optional-dependencies]
	Groups []string // of [dependency-groups] (PEP 735)
}

// Reader reads a file of the task by the name the job has for it. It bounds the size.
type Reader func(name string) ([]byte, error)

// List reads requirements that are written one by one, each with its hashes if it has any. An error has the number of
// the requirement.
func List(lines []string) (*Set, error) {
	var f files
	for i, l := range lines {
		at := fmt.Sprintf("requirement %d", i+1)
		l = strings.TrimSpace(l)
		if l == "" || l[0] == '-' {
			return nil, fmt.Errorf("%s: %s is empty or an option, which only files have: write a requirements file, or use "+
				"the options of the task", at, show(l))
		}
		if err := f.line("", l, false); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	return f.set(), nil
}

// File reads a requirements file and those that it includes, whose names are relative to it. An error is one sentence
// with file and line.
func File(name string, read Reader) (*Set, error) {
	f := files{read: read}
	if err := f.file(path.Clean(name), false); err != nil {
		return nil, err
	}
	return f.set(), nil
}

// Lock reads a lock file: by its name a uv.lock, or otherwise a requirements file with hashes.
func (c Choice) Lock(name string, read Reader) (*Set, error) {
	name = path.Clean(name)
	base := path.Base(name)
	switch {
	case base == "uv.lock":
		return c.readUVLock(name, read)
	case path.Ext(base) == ".toml" || slices.Contains([]string{"poetry.lock", "pdm.lock", "Pipfile.lock"}, base),
		strings.HasSuffix(base, ".py.lock"):
		return nil, fmt.Errorf("lock %s can't be read here: lock with uv, or export it as a requirements file with hashes",
			name)
	case len(c.Extras)+len(c.Groups) > 0:
		return nil, fmt.Errorf("lock %s has no extras and groups to choose: only a uv.lock has", name)
	}
	s, err := File(name, read)
	if err != nil {
		return nil, err
	}
	s.Complete, s.Hashed = true, len(s.Lines) > 0
	return s, nil
}

// readUVLock reads the lock of a project, and the indexes in it, which an export leaves out.
func (c Choice) readUVLock(name string, read Reader) (*Set, error) {
	var lock struct {
		RequiresPython string `toml:"requires-python"`
		Packages       []struct {
			Source map[string]any `toml:"source"`
		} `toml:"package"`
	}
	u := &UVLock{Choice: c}
	var err error
	if u.Lock, err = read(name); err != nil {
		return nil, fmt.Errorf("failed to read lock %s: %w", name, err)
	}
	if err := decode(u.Lock, &lock); err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	if u.Project, err = read(path.Join(path.Dir(name), "pyproject.toml")); err != nil {
		return nil, fmt.Errorf("%s needs what it locks beside it: %w", name, err)
	}
	s := &Set{UVLock: u, Complete: true, RequiresPython: lock.RequiresPython}
	for _, p := range lock.Packages {
		registry, _ := p.Source["registry"].(string)
		// a directory is named by find_links, and PyPI stands for the node's own index, which may be a mirror of it
		if !strings.HasPrefix(registry, "http") || strings.TrimSuffix(registry, "/") == "https://pypi.org/simple" ||
			slices.Contains(s.Indexes.Extra, registry) {
			continue
		}
		if _, err := CheckURL(registry); err != nil {
			return nil, fmt.Errorf("%s: an index: %w", name, err)
		}
		s.Indexes.Extra = append(s.Indexes.Extra, registry)
	}
	return s, nil
}

// Add adds what a script requires, which is a project. It is an error if the set is not like it.
func (s *Set) Add(script *Set) error {
	switch {
	case script.Empty():
		return nil
	case s.Hashed:
		return errors.New("some requirements have hashes and some have none: lock those that the script declares, too")
	}
	s.Projects = append(s.Projects, script.Projects...)
	s.Constraints = append(s.Constraints, script.Constraints...)
	s.Overrides = append(s.Overrides, script.Overrides...)
	s.NewerThan = cmp.Or(s.NewerThan, script.NewerThan)
	s.Names = s.Names || script.Names
	return nil
}

// Empty reports whether nothing is to be installed.
func (s *Set) Empty() bool { return len(s.Lines) == 0 && len(s.Projects) == 0 && s.UVLock == nil }

// decode reads TOML.
func decode(content []byte, into any) error {
	err := toml.Unmarshal(content, into)
	if err == nil {
		return nil
	}
	line, why := 0, strings.TrimPrefix(plain.Line(err.Error(), 2*maxShown), "toml: ")
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, _ = at.Position()
		if what, _, ok := strings.Cut(why, " into struct field "); ok { // which is of this program
			why = strings.Join(at.Key(), ".") + ": " + what
		}
	}
	return fmt.Errorf("line %d: this is not TOML, or has a value of another type: %s", line, why)
}
