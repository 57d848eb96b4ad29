// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// class is one of the operator's file with its datasets.
type class struct {
	policy.Class
	label  string
	engine *engine.Engine
}

// classes opens those of the operator's file, in order of name. It looks at no file system.
func (s *session) classes() ([]class, error) {
	file, err := policy.Load(s.file)
	if err != nil {
		return nil, err
	}
	var all []class
	for _, name := range slices.Sorted(maps.Keys(file.Classes)) {
		c := file.Classes[name]
		e, err := file.Engine(name)
		if err != nil {
			return nil, err
		}
		all = append(all, class{c, name, e})
	}
	return all, nil
}

// found is a dataset with its class.
type found struct {
	class
	engine.Dataset
}

func (f found) id() string { return f.Tags[engine.ID] }

// String is the volume in words.
func (f found) String() string { return fmt.Sprintf("%s (%s)", f.title(), printable(f.id())) }

// title is its namespace and name, as a person names it.
func (f found) title() string {
	return printable(f.Tags[engine.Namespace] + "/" + f.Tags[engine.Volume])
}

// printable is a text that others have chosen, fit for a terminal: quoted if quotes would change anything in it, such
// as what can't be printed.
func printable(text string) string {
	if quoted := strconv.Quote(text); quoted != `"`+text+`"` {
		return quoted
	}
	return text
}

// datasets returns what accept accepts, of one class or, without a name, of all. Hidden is why some classes can't be
// listed.
func (s *session) datasets(ctx context.Context, only string, accept func(found) bool) (all []found, hidden, err error) {
	classes, err := s.classes()
	if err != nil {
		return nil, nil, err
	}
	if only != "" {
		classes = slices.DeleteFunc(classes, func(c class) bool { return c.label != only })
		if len(classes) == 0 {
			return nil, nil, fmt.Errorf("there is no class %q", only)
		}
	}
	for _, c := range classes {
		list, err := c.datasets(ctx)
		if err != nil {
			hidden = errors.Join(hidden, fmt.Errorf("class %s can't be listed: %w", c.label, err))
		}
		for _, d := range list {
			if f := (found{c, d}); accept(f) {
				all = append(all, f)
			}
		}
	}
	return all, hidden, nil
}

func (c class) datasets(ctx context.Context) ([]engine.Dataset, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // a pool that does not answer holds up its own class
	defer cancel()
	return c.engine.List(ctx)
}

// meant returns the volumes that a person means: the one with this id, or else those with the name, with the namespace
// before it or without. A name means nothing while a class is hidden, which may have a volume of that name, too.
func meant(all []found, argument string, hidden error) ([]found, error) {
	var of [3][]found
	for _, f := range all {
		name := f.Tags[engine.Volume]
		switch argument {
		case f.id():
			of[0] = append(of[0], f)
		case f.Tags[engine.Namespace] + "/" + name:
			of[1] = append(of[1], f)
		case name:
			of[2] = append(of[2], f)
		}
	}
	switch {
	case len(of[0]) > 0:
		return of[0], nil
	case hidden != nil:
		return nil, fmt.Errorf("it is not known which volume %q is: %w", argument, hidden)
	case len(of[1]) > 0:
		return of[1], nil
	}
	return of[2], nil
}

// volume returns one that is in use by Nomad, or could be.
func (s *session) volume(ctx context.Context, argument string) (found, error) {
	all, hidden, err := s.datasets(ctx, "", found.IsVolume)
	if err != nil {
		return found{}, err
	}
	all, err = meant(all, argument, hidden)
	switch {
	case err != nil:
		return found{}, err
	case len(all) == 0:
		return found{}, fmt.Errorf("there is no volume %q: \"list\" shows what there is", argument)
	case len(all) == 1:
		return all[0], nil
	}
	var names []string
	for _, f := range all {
		names = append(names, f.String())
	}
	return found{}, fmt.Errorf("%q could be %s: use its id", argument, strings.Join(names, " or "))
}

// locked waits for the lock of a volume, and looks at it again.
func (f found) locked(ctx context.Context) (found, func(), error) {
	unlock, err := f.lock(ctx, f.id())
	if err != nil {
		return f, nil, err
	}
	d, err := f.engine.Get(ctx, f.Name)
	if err != nil {
		unlock()
		return f, nil, fmt.Errorf("volume %s: %w", f, err)
	}
	f.Dataset = d
	return f, unlock, nil
}

// lock waits for the lock of a dataset.
func (c class) lock(ctx context.Context, key string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return c.engine.Lock(ctx, key)
}

// snapshotOf returns one snapshot of a volume, and those that are later.
func (f found) snapshotOf(ctx context.Context, name string) (s engine.Snapshot, later []engine.Snapshot, err error) {
	all, err := f.engine.Snapshots(ctx, f.Name)
	if err != nil {
		return s, nil, err
	}
	var names []string
	for i, s := range all {
		if s.Name == name {
			return s, all[i+1:], nil
		}
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		return s, nil, fmt.Errorf("volume %s has no snapshots", f)
	}
	return s, nil, fmt.Errorf("volume %s has no snapshot %q: it has %s", f, name, strings.Join(names, ", "))
}
