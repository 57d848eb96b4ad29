// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// UVLock is a project that uv locked. uv has to export it.
type UVLock struct {
	Lock    []byte
	Project []byte // its pyproject.toml or, if Script, the script
	Script  bool
	Choice  Choice
}

// maxIndexes bounds the indexes of a lock, each of which is asked for each package.
const maxIndexes = 50

// readUVLock reads the lock of a project or a script, and the indexes in it, which an export leaves out.
func (c Choice) readUVLock(name string, read Reader) (*Set, error) {
	var lock struct {
		Version        int    `toml:"version"`
		RequiresPython string `toml:"requires-python"`
		Packages       []struct {
			Name   string         `toml:"name"`
			Source map[string]any `toml:"source"`
		} `toml:"package"`
	}
	u := &UVLock{}
	keep := func(name string) (content []byte, err error) {
		u.Lock, err = read(name)
		return u.Lock, err
	}
	if err := decode("lock", name, keep, &lock); err != nil {
		return nil, err
	}
	if lock.Version == 0 {
		return nil, fmt.Errorf("%s has no version: it is not a lock of uv", name)
	}
	project := relative(name, "pyproject.toml")
	if script, ok := strings.CutSuffix(name, ".lock"); ok && path.Ext(script) == ".py" {
		project, u.Script = script, true
	}
	var err error
	if u.Project, err = read(project); err != nil {
		return nil, fmt.Errorf("%s needs what it locks beside it: %w", name, err)
	}
	if len(u.Project) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d KiB", project, maxFile>>10)
	}
	u.Choice = c
	s := &Set{UVLock: u, Complete: true, RequiresPython: and(lock.RequiresPython)}
	for _, p := range lock.Packages {
		registry, _ := p.Source["registry"].(string)
		if !strings.HasPrefix(registry, "http") { // a directory, which find_links names
			continue
		}
		if err := s.addIndex(registry); err != nil {
			return nil, fmt.Errorf("%s: package %s: %w", name, show(p.Name), err)
		}
	}
	return s, nil
}

// addIndex adds the index that a lock names for a package. PyPI stands for the node's own index, which may be a mirror
// of it.
func (s *Set) addIndex(source string) error {
	if strings.TrimSuffix(source, "/") == "https://pypi.org/simple" || slices.Contains(s.Indexes.Extra, source) {
		return nil
	}
	if _, err := index.CheckURL(source); err != nil {
		return fmt.Errorf("its index: %w", err)
	}
	if s.Indexes.Extra = append(s.Indexes.Extra, source); len(s.Indexes.Extra) > maxIndexes {
		return fmt.Errorf("the lock has more than %d indexes", maxIndexes)
	}
	return nil
}
