// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// class is one of the operator's file.
type class struct {
	policy.Class
	label  string
	engine *engine.Engine

	look   engine.Look // of session.look
	failed error       // why there is none
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
		all = append(all, class{Class: c, label: name, engine: file.Engine(name)})
	}
	return all, nil
}

// look looks at all classes at the same time: a pool that does not answer holds up its own class.
func (s *session) look(ctx context.Context) ([]class, error) {
	all, err := s.classes()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var looks sync.WaitGroup
	for i := range all {
		looks.Go(func() { all[i].look, all[i].failed = all[i].engine.Look(ctx) })
	}
	looks.Wait()
	return all, nil
}

// found is a dataset with its class.
type found struct {
	class
	engine.Dataset
}

// key is the id by which a person names it, and that of its lock.
func (f found) key() string {
	if engine.InTrash(f.Name) {
		return engine.TrashLock(f.Name)
	}
	return f.Tags[engine.ID]
}

// String is the volume in words.
func (f found) String() string { return fmt.Sprintf("%s (%s)", f.title(), plain.Line(f.key(), 0)) }

// title is its namespace and name, as a person names it.
func (f found) title() string {
	return plain.Line(f.Tags[engine.Namespace]+"/"+f.Tags[engine.Volume], 0)
}

// datasets returns what accept accepts. Hidden is why some classes can't be listed.
func (s *session) datasets(ctx context.Context, accept func(found) bool) (all []found, hidden, err error) {
	classes, err := s.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range classes {
		if c.failed != nil {
			hidden = errors.Join(hidden, fmt.Errorf("class %s can't be listed: %w", c.label, c.failed))
		}
		for _, d := range c.look.Datasets {
			if f := (found{c, d}); accept(f) {
				all = append(all, f)
			}
		}
	}
	return all, hidden, nil
}

// meant returns the one that a person means: that with this id, or else that with the name, with the namespace before
// it or without. A name means nothing while a class is hidden, which may have a volume of that name, too.
func meant(all []found, argument string, hidden error) (found, error) {
	var of [3][]found
	for _, f := range all {
		name := f.Tags[engine.Volume]
		switch {
		case argument == f.key() || argument == f.Tags[engine.ID]:
			of[0] = append(of[0], f)
		case name == "": // a slot's
		case argument == f.Tags[engine.Namespace]+"/"+name:
			of[1] = append(of[1], f)
		case argument == name:
			of[2] = append(of[2], f)
		}
	}
	these := of[0]
	if len(these) == 0 && hidden != nil {
		return found{}, fmt.Errorf("it is not known which volume %q is: %w", argument, hidden)
	}
	for _, others := range of[1:] {
		if len(these) == 0 {
			these = others
		}
	}
	switch len(these) {
	case 0:
		return found{}, fmt.Errorf("there is no %q: \"list\" shows what there is", argument)
	case 1:
		return these[0], nil
	}
	var names []string
	for _, f := range these {
		names = append(names, f.String())
	}
	return found{}, fmt.Errorf("%q could be %s: use the id of one", argument, strings.Join(names, " or "))
}

// locked finds a volume, waits for its lock, and looks at it again.
func (s *session) locked(ctx context.Context, argument string) (found, func(), error) {
	all, hidden, err := s.datasets(ctx, found.IsVolume)
	if err != nil {
		return found{}, nil, err
	}
	f, err := meant(all, argument, hidden)
	if err != nil {
		return f, nil, err
	}
	unlock, err := f.lock(ctx, f.key())
	if err != nil {
		return f, nil, err
	}
	f.Dataset, err = f.engine.Get(ctx, f.Name)
	if err != nil {
		unlock()
		return f, nil, fmt.Errorf("volume %q: %w", argument, err)
	}
	return f, unlock, nil
}

// lock waits for the lock of a dataset.
func (c class) lock(ctx context.Context, key string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return c.engine.Lock(ctx, key)
}
