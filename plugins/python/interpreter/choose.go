// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// byDefault orders interpreters, the best to use by default first.
func byDefault(a, b Interpreter) int {
	rank := func(wrong bool) int {
		if wrong {
			return 1
		}
		return 0
	}
	return cmp.Or(
		rank(!a.ordinary())-rank(!b.ordinary()),
		rank(IsPreRelease(a.Version))-rank(IsPreRelease(b.Version)),
		CompareVersions(b.Version, a.Version),
	)
}

// ordinary reports whether most packages have wheels for such an interpreter.
func (i Interpreter) ordinary() bool { return i.Implementation == "cpython" && !i.FreeThreaded }

// String is the version, with what is unusual about the interpreter: "3.11.2", "3.9.16 (pypy)", "3.13.0
// (free-threaded)".
func (i Interpreter) String() string {
	switch {
	case i.Implementation != "cpython":
		return fmt.Sprintf("%s (%s)", i.Version, i.Implementation)
	case i.FreeThreaded:
		return i.Version + " (free-threaded)"
	}
	return i.Version
}

// Name is the name of the implementation: "CPython", "PyPy", or that of sys.implementation.
func (i Interpreter) Name() string {
	switch i.Implementation {
	case "cpython":
		return "CPython"
	case "pypy":
		return "PyPy"
	}
	return i.Implementation
}

// Fitting returns those of the interpreters, the best first as in Found, whose version is in the wanted set. Of several
// that take the same wheels it returns only the first. With a path, it returns the interpreter of that name, if its
// version is wanted. The error is a *NoneFitsError.
func Fitting(found []Interpreter, path string, wanted Specifier) ([]Interpreter, error) {
	var fitting []Interpreter
	for _, i := range found {
		same := func(f Interpreter) bool {
			return f.Implementation == i.Implementation && f.Minor == i.Minor &&
				f.FreeThreaded == i.FreeThreaded && f.Platform == i.Platform && f.Libc == i.Libc
		}
		if (path == "" || i.named(path)) && wanted.Allows(i.Version) && !slices.ContainsFunc(fitting, same) {
			fitting = append(fitting, i)
		}
	}
	if len(fitting) == 0 {
		return nil, &NoneFitsError{Wanted: wanted, Path: path, Found: found}
	}
	return fitting, nil
}

func (i Interpreter) named(path string) bool {
	path = filepath.Clean(path)
	return path == i.Path || path == i.Real || slices.Contains(i.Names, path)
}

// NoneFitsError names the interpreters of the node, and a constraint that keeps the job from such nodes.
type NoneFitsError struct {
	Wanted Specifier
	Path   string // that was asked for, or empty
	Found  []Interpreter
}

// Error is one line, for the task's events.
func (e *NoneFitsError) Error() string {
	if e.Path != "" {
		return e.pathError()
	}
	text := fmt.Sprintf("python %s is not on this node, which has %s", e.Wanted, versionsOf(e.Found))
	if e.Wanted.String() == "" {
		text = "no python is on this node"
	}
	c, err := ConstraintFor(e.Wanted)
	switch {
	case err != nil:
		return fmt.Sprintf("%s, and %v", text, err)
	case c == nil:
		return text + ": install one, or see the plugin's option interpreters"
	}
	return fmt.Sprintf("%s; the job needs nodes that have it: %s", text, c)
}

func (e *NoneFitsError) pathError() string {
	var list []string
	for _, i := range e.Found {
		if i.named(e.Path) {
			return fmt.Sprintf("%s is python %s, and %s is required", e.Path, i, e.Wanted)
		}
		list = append(list, fmt.Sprintf("%s (%s)", i.Path, i))
	}
	has := "none"
	if len(list) > 0 {
		has = enumerate(list)
	}
	return fmt.Sprintf("%s is not an interpreter that this node offers, which has %s: "+
		"choose one of them, or say which versions the job can use", e.Path, has)
}

// versionsOf are the versions, oldest first, each once.
func versionsOf(found []Interpreter) string {
	if len(found) == 0 {
		return "none"
	}
	sorted := slices.Clone(found)
	slices.SortStableFunc(sorted, func(a, b Interpreter) int { return CompareVersions(a.Version, b.Version) })
	var list []string
	for _, i := range sorted {
		list = append(list, i.String())
	}
	return enumerate(slices.Compact(list))
}

// enumerate is "a, b and c".
func enumerate(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	last := len(list) - 1
	return strings.Join(list[:last], ", ") + " and " + list[last]
}
