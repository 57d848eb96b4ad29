// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package requirement collects what a Python program requires, for uv: from lists, requirements files, projects, the
// metadata of scripts, and locks. uv interprets them. This package reads them with the rights of the task, and refuses
// what would run code of a package, read other files of the node, or decide what the node's operator decides.
package requirement

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// Set is a set of requirements, ready for uv.
type Set struct {
	Lines       []string // of a requirements file, sorted, each once, with their hashes
	Constraints []string // in the same form
	Overrides   []string // in the same form
	Projects    []Project
	NewerThan   string // packages that were uploaded later are left out, "" for none (uv's exclude-newer)

	// Hashed: each line has hashes, which uv must insist on.
	Hashed bool

	// Complete: this is a lock, and nothing else is to be installed.
	Complete bool

	// RequiresPython is the specifier of a lock, project or script for the interpreter (PEP 440).
	RequiresPython string

	// Indexes are those that the file names; empty where it names none.
	Indexes index.Sources

	// Names: some requirement names a URL or an index by itself.
	Names bool

	// UVLock is set for a uv.lock: then there are no lines.
	UVLock *UVLock
}

// Choice is the optional parts of a project, or of its lock, that are wanted.
type Choice struct {
	Extras []string // of [project.optional-dependencies]
	Groups []string // of [dependency-groups] (PEP 735)
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

// Lock is Choice.Lock without a choice.
func Lock(name string, read Reader) (*Set, error) { return Choice{}.Lock(name, read) }

// Lock reads a lock file: by its name a uv.lock or SCRIPT.py.lock of uv, or otherwise a requirements file with hashes.
func (c Choice) Lock(name string, read Reader) (*Set, error) {
	name = path.Clean(name)
	base := path.Base(name)
	switch {
	case path.Ext(base) == ".toml":
		return nil, fmt.Errorf("lock %s can't be read here: lock with uv, or as a requirements file with hashes", name)
	case base == "uv.lock":
		return c.readUVLock(name, read)
	case slices.Contains([]string{"poetry.lock", "pdm.lock", "Pipfile.lock", "conda-lock.yml"}, base):
		return nil, fmt.Errorf("lock %s is its tool's own: export it as a requirements file with hashes", name)
	case len(c.Extras)+len(c.Groups) > 0:
		return nil, fmt.Errorf("lock %s has no extras and groups to choose: only a uv.lock has", name)
	case strings.HasSuffix(base, ".py.lock"):
		return c.readUVLock(name, read)
	}
	s, err := File(name, read)
	if err != nil {
		return nil, err
	}
	s.Complete, s.Hashed = true, len(s.Lines) > 0
	return s, nil
}

// Join is the union of two sets; either may be nil. It is an error if only one has hashes, or if one is a lock of uv.
func (s *Set) Join(other *Set) (*Set, error) {
	s, other = cmp.Or(s, &Set{}), cmp.Or(other, &Set{})
	lines := len(s.Lines) > 0 && len(other.Lines) > 0
	switch {
	case s.UVLock != nil && !other.Empty(), other.UVLock != nil && !s.Empty():
		return nil, errors.New("a lock and other requirements exclude each other: lock them together")
	case lines && s.Hashed != other.Hashed:
		return nil, errors.New("some requirements have hashes and some have none: " +
			"the program's own metadata and the job's requirements must both have them, or neither")
	case s.Indexes.URL != "" && other.Indexes.URL != "" && s.Indexes.URL != other.Indexes.URL:
		return nil, errors.New("two package indexes are named: write --extra-index-url for one of them")
	}
	joined := &Set{
		Lines:          sorted(slices.Concat(s.Lines, other.Lines)),
		Constraints:    sorted(slices.Concat(s.Constraints, other.Constraints)),
		Overrides:      sorted(slices.Concat(s.Overrides, other.Overrides)),
		Projects:       slices.Concat(s.Projects, other.Projects),
		NewerThan:      cmp.Or(s.NewerThan, other.NewerThan),
		Hashed:         s.Hashed || other.Hashed,
		Complete:       s.Complete && other.Empty() || other.Complete && s.Empty(),
		RequiresPython: and(s.RequiresPython, other.RequiresPython),
		Indexes: index.Sources{
			URL:       cmp.Or(s.Indexes.URL, other.Indexes.URL),
			Extra:     each(s.Indexes.Extra, other.Indexes.Extra),
			FindLinks: each(s.Indexes.FindLinks, other.Indexes.FindLinks),
			Offline:   s.Indexes.Offline || other.Indexes.Offline,
		},
		Names:  s.Names || other.Names,
		UVLock: cmp.Or(s.UVLock, other.UVLock),
	}
	return joined, nil
}

// Empty reports whether nothing is to be installed.
func (s *Set) Empty() bool {
	return s == nil || len(s.Lines) == 0 && len(s.Projects) == 0 && s.UVLock == nil
}

// and is the specifier of the versions that all specifiers allow.
func and(specifiers ...string) string {
	var list []string
	for _, s := range specifiers {
		for part := range strings.SplitSeq(s, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
	}
	return strings.Join(each(list), ",")
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

func sorted(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
