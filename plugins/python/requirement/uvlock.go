// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"fmt"
	"path"
	"strings"
)

// readUVLock reads the lock of a project or a script. It has no specification, so that uv has to interpret it.
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
	if !c.empty() {
		var p pyproject
		if err := decode("project", project, func(string) ([]byte, error) { return u.Project, nil }, &p); err != nil {
			return nil, err
		}
		if u.Choice, err = p.check(project, c); err != nil {
			return nil, err
		}
	}
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
