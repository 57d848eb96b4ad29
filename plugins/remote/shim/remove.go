// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// remove is endpoint.Endpoint's Remove.
func (s *Shim) remove(ctx context.Context, ref endpoint.Ref) error {
	l, err := s.owned(ctx, ref)
	switch {
	case errors.Is(err, endpoint.ErrGone):
		s.sweep(ref.Name)
		return nil
	case errors.Is(err, errDamaged) && ref.Epoch == 0:
		return s.removeDamaged(ctx, ref.Name)
	case err != nil:
		return err
	}
	defer l.unlock()
	if err := s.settle(ctx, l); err != nil {
		return err
	}
	if l.o.State == endpoint.Running || l.o.State == endpoint.Released {
		return fmt.Errorf("object %s can't be removed: its program runs", ref.Name)
	}
	if err := s.removeData(l); err != nil { // first: a supervisor that has to be started may need the space
		return err
	}
	if err := s.destroy(ctx, l.o.TaskID); err != nil {
		return err
	}
	return s.removeFiles(l)
}

// destroy removes what the supervisor has of a task. It starts none for nothing.
func (s *Shim) destroy(ctx context.Context, id string) error {
	if _, err := os.Lstat(s.store.TaskDir(id)); errors.Is(err, fs.ErrNotExist) {
		s.client.Forget(id)
		return nil
	}
	return s.client.Destroy(ctx, id)
}

// removeDamaged ends what still runs of an object without a readable record. Where the supervisor's state of it can't
// be read either, its cgroup alone tells what that is.
func (s *Shim) removeDamaged(ctx context.Context, name string) error {
	l, err := wait(ctx, name, s.lockDir)
	if errors.Is(err, endpoint.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer l.unlock()
	switch _, err := readObject(l.path); {
	case err == nil: // it was made anew meanwhile
		return endpoint.ErrEpoch
	case !errors.Is(err, errDamaged) && !errors.Is(err, endpoint.ErrGone):
		return err
	}
	states, unreadable, err := s.store.List()
	if err != nil {
		return err
	}
	group := s.group(name)
	if group.Mode == cgroup.None && len(unreadable) > 0 {
		return fmt.Errorf("object %s can't be removed, since its program may still run, and the supervisor's state of it "+
			"can't be read: end what runs of it on the host, then remove %s there", name, strings.Join(unreadable, ", "))
	}
	if p := l.plan(); p.State != nil && p.State.AllocID == name {
		states = append(states, p.State)
	}
	for _, st := range states {
		if st.AllocID == name {
			if err := s.destroy(ctx, st.ID); err != nil {
				return err
			}
		}
	}
	if err := group.Kill(); err != nil {
		return fmt.Errorf("failed to end what is left of the object: %w", err)
	}
	if err := group.Remove(); err != nil {
		return fmt.Errorf("failed to remove the object's cgroup: %w", err)
	}
	return s.removeFiles(l)
}

// removeData removes what is in an object's directory, but for the record.
func (s *Shim) removeData(l *locked) error {
	if err := unmount(l.path); err != nil {
		return err
	}
	entries, err := os.ReadDir(l.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == recordFile {
			continue
		}
		if err := owndir.RemoveAll(filepath.Join(l.path, e.Name())); err != nil {
			return fmt.Errorf("failed to remove the object's files: %w", err)
		}
	}
	return nil
}

// removeFiles removes an object's directory: the record last, so that a removal that is killed
// is repeated.
func (s *Shim) removeFiles(l *locked) error {
	if err := s.removeData(l); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(l.path, recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(l.path); err != nil {
		return err
	}
	_ = os.Remove(s.objects()) // succeeds for the last one
	return nil
}
