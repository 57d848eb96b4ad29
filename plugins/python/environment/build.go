package environment

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// build makes the next environment of a key, whose lock the caller has. Errors of Spec.Build
// come back as they are.
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
	// what the builder may write to is below what only we may write to, so that nothing
	// can be put in the way of the steps that follow
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
	giveBack, err := s.run(ctx, spec, s.path(made, "env"), s.path("envs", id), s.path(scratch))
	defer giveBack()
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

// run has Spec.Build do its work. No process of the builder is there when it returns without an error. giveBack is to be
// called after the environment was sealed: of files that are linked in both places, each has to be looked at as the builder's.
func (s *store) run(ctx context.Context, spec Spec, dir, final, scratch string) (giveBack func(), err error) {
	downloads := ""
	var k *kept
	if spec.Downloads {
		if k, err = s.takeKept(); err != nil {
			return func() {}, full(s.dir, err)
		}
		downloads = s.path(k.name)
	}
	err = spec.Build(ctx, s.builder, dir, final, scratch, downloads)
	var left error
	if s.builder != nil {
		left = s.builder.Clear()
	}
	giveBack = func() {
		if k != nil {
			k.giveBack(left == nil)
		}
	}
	if err == nil {
		err = left
	}
	return giveBack, err // rather that of the build, of which processes may be the consequence
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
	if err := os.Chmod(final, 0o555); err != nil { // not before: who is not root could not have moved it
		return nil, fmt.Errorf("failed to seal the environment: %w", err)
	}
	if err := unix.Lstat(final, &content.stat); err != nil {
		return nil, fmt.Errorf("failed to look at the environment: %w", err)
	}
	t := content.tree()
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	e := entry{Key: spec.Key, Built: time.Now(), Boot: boot, Tree: t}
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
