// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// className matches valid names of classes. The id of a device is "<class>-00", which must not be parsed as a number
// (as "1e-00" would be), and the dataset of a slot is "<class>-00.<lease>".
var className = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,62}$`)

// Validate checks the rules that the file's schema can't express.
func (f File) Validate() error {
	var p schema.Problems
	if err := absolute(f.ZFS); err != nil {
		p = append(p, fmt.Errorf("zfs %w", err))
	}
	names := slices.Sorted(maps.Keys(f.Classes))
	for i, name := range names {
		if !className.MatchString(name) {
			p = append(p, fmt.Errorf("%q can't be the name of a class: begin with a letter, and use at most 63 letters, "+
				"digits, - and _", name))
		}
		for _, other := range names[:i] {
			a, b := f.Classes[other], f.Classes[name]
			if within(a.Root, b.Root) || within(b.Root, a.Root) {
				p = append(p, fmt.Errorf("the roots of class %q and class %q overlap (%q and %q): choose roots that "+
					"don't contain each other", other, name, a.Root, b.Root))
			}
		}
	}
	return p.OrNil()
}

// within reports whether a dataset is the root or below it.
func within(name, root string) bool { return name == root || strings.HasPrefix(name, root+"/") }

// Validate checks the rules that the class's schema can't express.
func (c Class) Validate() error {
	var p schema.Problems
	add := func(option string, err error) {
		if err != nil {
			p = append(p, fmt.Errorf("%s %w", option, err))
		}
	}
	add("root", c.checkRoot())
	add("mode", checkMode(c.Mode))
	low, def, high := c.MinCapacity, c.DefaultCapacity, c.MaxCapacity
	if low.Bytes() > def.Bytes() || def.Bytes() > high.Bytes() {
		add("default_capacity", fmt.Errorf("%q is not between min_capacity %q and max_capacity %q: change one of them",
			def, low, high))
	}
	for i, name := range c.Allow {
		switch {
		case !slices.Contains(parameters, name):
			add("allow", fmt.Errorf("%q is not a parameter of volumes: use %s", name, strings.Join(parameters, ", ")))
		case slices.Index(c.Allow, name) < i:
			add("allow", fmt.Errorf("has %q twice: list it once", name))
		}
	}
	for _, pattern := range c.Namespaces {
		if !namespacePattern.MatchString(pattern) {
			add("namespaces", fmt.Errorf("%q is not a pattern of namespaces: use letters, digits and -, and * for any "+
				"characters", pattern))
		}
	}
	return p.OrNil()
}

// Validate checks the rules that the schema of slots can't express.
func (s Slots) Validate() error {
	var p schema.Problems
	if err := absolute(s.Mount); err != nil {
		p = append(p, fmt.Errorf("mount %w", err))
	} else if s.Mount == "/" {
		p = append(p, errors.New(`mount "/" would hide the task's own root directory: use for example "/scratch"`))
	}
	return p.OrNil()
}

var (
	namespacePattern = regexp.MustCompile(`^[A-Za-z0-9*-]{1,128}$`)
	octalMode        = regexp.MustCompile(`^[0-3]?[0-7]{3}$`)

	// matches names of datasets, see zfs(8)
	root = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.:-]*(/[A-Za-z0-9_:-][A-Za-z0-9_.:-]*)*$`)
)

func (c Class) checkRoot() error {
	if !root.MatchString(c.Root) {
		return fmt.Errorf("%q is not the name of a dataset: use for example \"tank/nomad\"", c.Root)
	}
	return nil
}

// absolute returns an error unless a path is absolute and safe in arguments of programs and in mount tables.
func absolute(name string) error {
	switch {
	case !path.IsAbs(name) || filepath.Clean(name) != name:
		return fmt.Errorf("%q is not an absolute path in its shortest form: begin it with /, and remove .. and a final /",
			name)
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("%q has a character that can't be printed: remove it", name)
	}
	return nil
}

func checkMode(mode string) error {
	if !octalMode.MatchString(mode) {
		return fmt.Errorf("%q is not a mode: use up to four octal digits in quotes, without setuid, such as \"0755\"", mode)
	}
	return nil
}
