// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package requirement reads a Python program's requirements from lists, requirements files, projects, the metadata of
// scripts, and locks. uv interprets them. This package refuses requirements that would run code of a package, read
// other files of the node, or override decisions of the node's operator.
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
	Lines       []string // lines of a requirements file: requirements with their hashes
	Constraints []string // in the same form
	Overrides   []string // in the same form
	Projects    []Project
	NewerThan   string // ignore packages uploaded after this time, "" for no limit (uv's exclude-newer)

	// Hashed means that uv must require a hash for each line.
	Hashed bool

	// Complete means that this is a lock: uv must not install anything else.
	Complete bool

	// RequiresPython is the specifier (PEP 440) of the interpreters that a lock or project supports.
	RequiresPython string

	// Indexes are the sources that a requirements file or lock names.
	Indexes Sources

	// Names means that a requirement or a project names a URL or an index, which a node can refuse (job_indexes).
	Names bool

	// UVLock is set for a uv.lock. In that case, Lines is empty.
	UVLock *UVLock
}

// UVLock is a project that uv locked. Installer.Export converts it to a Set of requirements with hashes.
type UVLock struct {
	Lock    Content
	Project Content // the project's pyproject.toml
	Choice  Choice
}

// Content is the content of a file. In JSON it is only a digest, which is enough for the key of an environment.
type Content []byte

// MarshalText implements encoding.TextMarshaler.
func (c Content) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%x", sha256.Sum256(c)), nil }

// Choice selects optional parts of a project or of its lock.
type Choice struct {
	Extras []string // of [project.optional-dependencies]
	Groups []string // of [dependency-groups] (PEP 735)
}

// Reader reads a file of the task by its name in the job. It refuses a file that is too large.
type Reader func(name string) ([]byte, error)

// List reads a list of requirements, each with its hashes if it has any. Errors name the number of the requirement.
func List(lines []string) (*Set, error) {
	var f files
	for i, l := range lines {
		at := fmt.Sprintf("requirement %d", i+1)
		l = strings.TrimSpace(l)
		if l == "" || l[0] == '-' {
			return nil, fmt.Errorf("%s: %s is empty or an option of pip: put such options into a "+
				"requirements file, or use the task's own options", at, show(l))
		}
		if err := f.line("", l, false); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	return f.set(), nil
}

// File reads a requirements file and the files that it includes. Their names are relative to the including file. Errors
// are one line with file and line number.
func File(name string, read Reader) (*Set, error) {
	f := files{read: read}
	if err := f.file(path.Clean(name), false); err != nil {
		return nil, err
	}
	return f.set(), nil
}

// Lock reads a lock file: uv's if it is named uv.lock, otherwise a requirements file with hashes.
func (c Choice) Lock(name string, read Reader) (*Set, error) {
	name = path.Clean(name)
	base := path.Base(name)
	switch {
	case base == "uv.lock":
		return c.readUVLock(name, read)
	case path.Ext(base) == ".toml" || slices.Contains([]string{"poetry.lock", "pdm.lock", "Pipfile.lock"}, base),
		strings.HasSuffix(base, ".py.lock"):
		return nil, fmt.Errorf("lock %s is not supported: lock with uv, or export it as a requirements file with hashes",
			name)
	case len(c.Extras)+len(c.Groups) > 0:
		return nil, fmt.Errorf("lock %s does not support extras and dependency_groups: use a uv.lock", name)
	}
	s, err := File(name, read)
	if err != nil {
		return nil, err
	}
	s.Complete, s.Hashed = true, len(s.Lines) > 0
	return s, nil
}

// readUVLock reads a uv.lock and its project. It also collects the lock's indexes, because uv export omits them.
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
		return nil, fmt.Errorf("%s needs its pyproject.toml in the same directory: %w", name, err)
	}
	s := &Set{UVLock: u, Complete: true, RequiresPython: lock.RequiresPython}
	for _, p := range lock.Packages {
		registry, _ := p.Source["registry"].(string)
		// skip directories, which find_links names, and PyPI, which the node's own index (maybe a mirror) replaces
		if !strings.HasPrefix(registry, "http") || strings.TrimSuffix(registry, "/") == "https://pypi.org/simple" ||
			slices.Contains(s.Indexes.Extra, registry) {
			continue
		}
		if _, err := CheckURL(registry); err != nil {
			return nil, fmt.Errorf("%s: invalid index: %w", name, err)
		}
		s.Indexes.Extra = append(s.Indexes.Extra, registry)
	}
	return s, nil
}

// Add adds the requirements of a script. It fails if the set has hashes, because a script's requirements have none.
func (s *Set) Add(script *Set) error {
	switch {
	case script.Empty():
		return nil
	case s.Hashed:
		return errors.New("the requirements have hashes, but the script's requirements can't: move those out of the script")
	}
	s.Projects = append(s.Projects, script.Projects...)
	s.Constraints = append(s.Constraints, script.Constraints...)
	s.Overrides = append(s.Overrides, script.Overrides...)
	s.NewerThan = cmp.Or(s.NewerThan, script.NewerThan)
	s.Names = s.Names || script.Names
	return nil
}

// Empty reports whether the set has nothing to install.
func (s *Set) Empty() bool { return len(s.Lines) == 0 && len(s.Projects) == 0 && s.UVLock == nil }

// decode parses TOML. Errors have the line number.
func decode(content []byte, into any) error {
	err := toml.Unmarshal(content, into)
	if err == nil {
		return nil
	}
	line, why := 0, strings.TrimPrefix(plain.Line(err.Error(), 2*maxShown), "toml: ")
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, _ = at.Position()
		if what, _, ok := strings.Cut(why, " into struct field "); ok { // the rest names a Go type
			why = strings.Join(at.Key(), ".") + ": " + what
		}
	}
	return fmt.Errorf("line %d: not valid TOML, or a value of the wrong type: %s", line, why)
}
