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

// class is a class of the operator's file.
type class struct {
	policy.Class
	label  string
	engine *engine.Engine

	look   engine.Look // the class's state, as session.look read it
	failed error       // why session.look could not read the class
}

// classes returns the classes of the operator's file, sorted by name. It does not access their pools.
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

// look returns all classes with their datasets. It reads them concurrently: if a pool hangs, only its class fails.
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

// key returns the id that commands accept, which is also the key of the dataset's lock.
func (f found) key() string {
	if engine.InTrash(f.Name) {
		return engine.TrashLock(f.Name)
	}
	return f.Tags[engine.ID]
}

// String returns the volume's namespace, name and id.
func (f found) String() string { return fmt.Sprintf("%s (%s)", f.title(), plain.Line(f.key(), 0)) }

// title returns the volume's NAMESPACE/NAME.
func (f found) title() string {
	return plain.Line(f.Tags[engine.Namespace]+"/"+f.Tags[engine.Volume], 0)
}

// datasets returns the datasets for which accept returns true. hidden joins the errors of classes that can't be listed.
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

// resolve returns the only dataset that the argument names: by id, else by NAMESPACE/NAME, else by NAME. If hidden is
// not nil it accepts only an id, because a class that can't be listed may have a volume of the same name.
func resolve(all []found, argument string, hidden error) (found, error) {
	var of [3][]found
	for _, f := range all {
		name := f.Tags[engine.Volume]
		switch {
		case argument == f.key() || argument == f.Tags[engine.ID]:
			of[0] = append(of[0], f)
		case name == "": // a slot has an id but no name
		case argument == f.Tags[engine.Namespace]+"/"+name:
			of[1] = append(of[1], f)
		case argument == name:
			of[2] = append(of[2], f)
		}
	}
	these := of[0]
	if len(these) == 0 && hidden != nil {
		return found{}, fmt.Errorf("failed to find volume %q: %w", argument, hidden)
	}
	for _, others := range of[1:] {
		if len(these) == 0 {
			these = others
		}
	}
	switch len(these) {
	case 0:
		return found{}, fmt.Errorf("%q was not found: use a name or id that \"list\" shows", argument)
	case 1:
		return these[0], nil
	}
	var names []string
	for _, f := range these {
		names = append(names, f.String())
	}
	return found{}, fmt.Errorf("%q matches %s: use an id", argument, strings.Join(names, " and "))
}

// lockTime is how long a command waits for the lock of a dataset.
const lockTime = 30 * time.Second

// locked locks a volume and reads it. Use the returned context for changes, and the returned function to unlock.
func (s *session) locked(ctx context.Context, argument string) (context.Context, found, func(), error) {
	all, hidden, err := s.datasets(ctx, found.IsVolume)
	if err != nil {
		return ctx, found{}, nil, err
	}
	f, err := resolve(all, argument, hidden)
	if err != nil {
		return ctx, f, nil, err
	}
	ctx, unlock, err := f.engine.Lock(ctx, f.key(), lockTime)
	if err != nil {
		return ctx, f, nil, err
	}
	f.Dataset, err = f.engine.Get(ctx, f.Name)
	if err != nil {
		unlock()
		return ctx, f, nil, fmt.Errorf("failed to read volume %q: %w", argument, err)
	}
	return ctx, f, unlock, nil
}
