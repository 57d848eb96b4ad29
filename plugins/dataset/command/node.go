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
func (f found) String() string {
	return fmt.Sprintf("%s/%s (%s)", f.Tags[engine.Namespace], f.Tags[engine.Volume], f.id())
}

// is reports whether a person means this volume: by its id, name, or namespace and name.
func (f found) is(argument string) bool {
	name := f.Tags[engine.Volume]
	return argument == f.id() || argument == name || argument == f.Tags[engine.Namespace]+"/"+name
}

// datasets returns what accept accepts of all classes. Those that can't be read are an error
// only if nothing was accepted elsewhere.
func (s *session) datasets(ctx context.Context, accept func(found) bool) ([]found, error) {
	classes, err := s.classes()
	if err != nil {
		return nil, err
	}
	var all []found
	var failed error
	for _, c := range classes {
		list, err := c.engine.List(ctx)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("class %s: %w", c.label, err))
		}
		for _, d := range list {
			if f := (found{c, d}); accept(f) {
				all = append(all, f)
			}
		}
	}
	if len(all) > 0 {
		failed = nil
	}
	return all, failed
}

// one returns the only dataset that a person means. what says what is looked for.
func (s *session) one(ctx context.Context, what, argument string, accept func(found) bool) (found, error) {
	f, err := s.oneOrNone(ctx, argument, accept)
	if err == nil && f.Name == "" {
		err = fmt.Errorf("there is no %s %q: \"list\" shows what there is", what, argument)
	}
	return f, err
}

// oneOrNone is one, with an empty one where there is none.
func (s *session) oneOrNone(ctx context.Context, argument string, accept func(found) bool) (found, error) {
	all, err := s.datasets(ctx, func(f found) bool { return f.is(argument) && accept(f) })
	switch {
	case err != nil || len(all) == 0:
		return found{}, err
	case len(all) == 1:
		return all[0], nil
	}
	var names []string
	for _, f := range all {
		names = append(names, f.String())
	}
	return found{}, fmt.Errorf("%q could be %s: use its id", argument, strings.Join(names, " or "))
}

// volume returns one that is in use by Nomad, or could be.
func (s *session) volume(ctx context.Context, argument string) (found, error) {
	return s.one(ctx, "volume", argument, found.IsVolume)
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

// splitAt splits VOLUME@SNAPSHOT.
func splitAt(argument string) (volume, snapshot string) {
	if i := strings.LastIndex(argument, "@"); i > 0 {
		return argument[:i], argument[i+1:]
	}
	return argument, ""
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
