// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// build makes the next environment of a key, whose lock the caller has. Errors of Spec.Build are returned as they are.
func (s *store) build(ctx context.Context, key string, spec Spec) (*Environment, error) {
	downloads, err := s.waitLock(ctx, "downloads", shared, nil)
	if err != nil {
		return nil, err
	}
	defer downloads.close()
	_, id, err := s.newest(key)
	if err != nil {
		return nil, err
	}
	// What the builder may write to is below a directory of ours, so that it cannot interfere with the steps that follow.
	name := filepath.Join("builds", key+"."+rand.Text())
	made, scratch := filepath.Join(name, "made"), filepath.Join(name, "scratch")
	defer s.removeTree(s.path(name))
	err = s.subdirectory(name, 0o711)
	for _, d := range []string{made, scratch} {
		if err == nil {
			err = s.buildersDirectory(d)
		}
	}
	if err != nil {
		return nil, full(s.dir, err)
	}
	release, err := s.run(ctx, spec, s.path(made, "env"), s.path("envs", id), s.path(scratch))
	defer release()
	if err != nil {
		return nil, err
	}
	sealed := s.path(name, "env")
	if err := os.Rename(s.path(made, "env"), sealed); err != nil {
		return nil, fmt.Errorf("failed to take over what was built: %w", err)
	}
	content, err := s.seal(sealed)
	if err != nil {
		return nil, full(s.dir, fmt.Errorf("failed to seal the environment: %w", err))
	}
	env, err := s.publish(ctx, id, sealed, content, spec)
	if err != nil {
		return nil, full(s.dir, err)
	}
	env.ID = key[:8]
	return env, nil
}

// run calls Spec.Build. No process of the builder is left when it returns without an error. Call release after the
// environment was sealed: a file that is linked in it and in the downloads must be the builder's while either is
// checked.
func (s *store) run(ctx context.Context, spec Spec, dir, final, scratch string) (release func(), err error) {
	downloads := ""
	var k *downloadDir
	if spec.Downloads {
		if k, err = s.acquireDownloads(); err != nil {
			return func() {}, full(s.dir, err)
		}
		downloads = s.path(k.name)
	}
	err = spec.Build(ctx, s.builder, dir, final, scratch, downloads)
	var left error
	if s.builder != nil {
		left = s.builder.Clear()
	}
	release = func() {
		if k != nil {
			k.release(left == nil)
		}
	}
	if err == nil {
		err = left
	}
	return release, err // processes that are left may be a consequence of the error of the build
}

// publish makes a sealed directory with this content an environment, and returns it locked.
func (s *store) publish(ctx context.Context, id, sealed string, content branch, spec Spec) (_ *Environment, err error) {
	l, err := s.waitLock(ctx, id, shared, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			if err := s.discard(id, l); err != nil {
				s.log("failed to remove environment %s, Tidy will: %v", id, err)
			}
		}
	}()
	final := s.path("envs", id)
	if err := os.Rename(sealed, final); err != nil {
		return nil, fmt.Errorf("failed to move the environment to its place: %w", err)
	}
	if err := os.Chmod(final, 0o555); err != nil { // not before: without root it could not have been moved
		return nil, fmt.Errorf("failed to seal the environment: %w", err)
	}
	if err := unix.Lstat(final, &content.stat); err != nil {
		return nil, fmt.Errorf("failed to look at the environment: %w", err)
	}
	t := content.tree()
	e := entry{Key: spec.Key, Built: time.Now(), Boot: task.BootID(), Tree: t}
	if spec.Warnings != nil {
		e.Warnings = spec.Warnings()
	}
	if e.Boot == "" { // otherwise Tidy does it, when no task waits
		if err := s.syncEnvironments(); err != nil {
			return nil, err
		}
		e.Synced = true
	}
	if err := s.writeEntry(id, e); err != nil {
		return nil, err
	}
	return &Environment{Dir: final, Size: t.Size, Warnings: e.Warnings, id: id, store: s, lock: l}, nil
}
