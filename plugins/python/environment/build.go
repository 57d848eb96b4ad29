// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// build makes a new environment for a key, whose lock the caller has, and returns it locked. It is built where it will
// be used, below a directory of ours, so that the builder cannot replace it as a whole. Errors of Spec.Build are
// returned as they are.
func (s *store) build(ctx context.Context, key string, spec *Spec) (env *Environment, err error) {
	id := strings.ToLower(rand.Text())
	l, err := s.tryLock(id, shared)
	if err != nil {
		return nil, err
	}
	dir, scratch := s.path("envs", id), s.path("builds", id)
	defer func() {
		s.removeTree(scratch)
		if err != nil {
			s.removeTree(dir)
			l.close()
		}
	}()
	for _, d := range []string{dir, scratch} {
		if err := s.buildersDirectory(d); err != nil {
			return nil, err
		}
	}
	if err := spec.Build(ctx, s.builder, dir, scratch); err != nil {
		return nil, err
	}
	s.removeTree(scratch) // first, since sealing copies files that have another name
	t, err := s.seal(dir)
	if err != nil {
		return nil, fmt.Errorf("failed to seal the environment: %w", err)
	}
	e := entry{ID: id, Key: spec.Key, Built: time.Now(), Boot: task.BootID(), Tree: t, key: key}
	if spec.Warnings != nil {
		e.Warnings = spec.Warnings()
	}
	if err := s.writeEntry(e); err != nil {
		return nil, err
	}
	return &Environment{Dir: dir, ID: id[:8], Size: t.Size, Warnings: e.Warnings, id: id, store: s, lock: l}, nil
}

// buildersDirectory makes a directory of the builder in one of ours.
func (s *store) buildersDirectory(path string) error {
	err := os.Mkdir(path, 0o700)
	if err == nil && s.builder != nil {
		err = os.Lchown(path, int(s.builder.UID), int(s.builder.GID))
	}
	if err != nil {
		return fmt.Errorf("failed to make a directory for the build: %w", err)
	}
	return nil
}
