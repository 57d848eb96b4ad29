// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tidy removes broken environments, leftovers of builds, and unused environments above MaxAge and MaxSize, the least
// recently used first. It also writes new environments to the disk. It does not wait for tasks or other processes: the
// next call looks again at what they use now.
func (c *Cache) Tidy(ctx context.Context) error {
	s, err := c.cfg.existing()
	if s == nil || err != nil {
		return err
	}
	t := &tidying{store: s}
	defer t.close()
	return errors.Join(t.builds(), t.sync(), t.environments(ctx), t.limit(&c.cfg), t.remove(ctx))
}

// Usage returns the size of all environments in bytes, and their number.
func (c *Cache) Usage() (size int64, count int, err error) {
	s, err := c.cfg.existing()
	if s == nil || err != nil {
		return 0, 0, err
	}
	entries, err := s.entries()
	for _, e := range entries {
		size += e.Tree.Size
	}
	return size, len(entries), err
}

type tidying struct {
	*store
	total int64 // the size of all that stays, in bytes
	idle  []candidate
	dead  []candidate // without a record
}

// candidate is an environment that no task uses, with its exclusive lock: no task can acquire it until that is closed.
type candidate struct {
	entry
	lock *lock
}

func (t *tidying) close() {
	for _, c := range slices.Concat(t.idle, t.dead) {
		c.lock.close()
	}
}

// builds removes temporary files of builds that were killed.
func (t *tidying) builds() error {
	names, err := t.names("builds")
	for _, name := range names {
		id, _, _ := strings.Cut(name, ".")
		l, lockErr := t.tryLock(id, exclusive)
		err = errors.Join(err, lockErr)
		if l != nil {
			t.removeTree(t.path("builds", name))
			l.close()
		}
	}
	return err
}

// sync writes new environments to the disk, and then marks the records that it has seen before as synced.
func (t *tidying) sync() error {
	names, err := t.names("meta")
	if err != nil {
		return err
	}
	var pending []*os.File
	for _, name := range names {
		f, err := os.Open(t.path("meta", name))
		if ignoreMissing(err) != nil {
			return fmt.Errorf("failed to read the records of environments: %w", err)
		}
		if err != nil {
			continue
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil && unsynced(info) {
			pending = append(pending, f)
		}
	}
	if len(pending) == 0 {
		return nil
	}
	if err := unix.Syncfs(int(pending[0].Fd())); err != nil {
		return fmt.Errorf("failed to write environments to the disk: %w", err)
	}
	for _, f := range pending {
		err = errors.Join(err, f.Chmod(0o400))
	}
	return err
}

// environments drops broken and replaced environments, and locks the idle ones.
func (t *tidying) environments(ctx context.Context) error {
	envs, err := t.names("envs")
	users, usersErr := t.names("users")
	entries, entriesErr := t.entries()
	if err = errors.Join(err, usersErr, entriesErr); err != nil {
		return err
	}
	ids := slices.Concat(envs, users)
	for id := range entries {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		err = errors.Join(err, t.environment(id, entries))
	}
	return err
}

// environment drops, counts or locks one. It reads the records again if entries, which are older, have none of it.
func (t *tidying) environment(id string, entries map[string]entry) (err error) {
	e, recorded := entries[id]
	l, err := t.tryLock(id, exclusive)
	if l == nil {
		t.total += e.Tree.Size
		return err
	}
	keep := false
	defer func() {
		if !keep {
			l.close()
		}
	}()
	if !recorded {
		if entries, err = t.entries(); err != nil {
			return err
		}
		e, recorded = entries[id]
	}
	inUse, err := t.inUse(id, func() {
		if e.used = time.Now(); recorded {
			t.touch(e.key) // the task may have ended just now
		}
	})
	if inUse || err != nil {
		if !recorded {
			e.Tree, _ = measure(t.path("envs", id))
		}
		t.total += e.Tree.Size
		return err
	}
	keep = true
	if _, err := os.Lstat(t.path("envs", id)); !recorded || ignoreMissing(err) == nil && err != nil {
		e.ID = id
		return t.drop(candidate{e, l})
	}
	if now := time.Now(); e.used.After(now) { // the clock was put back: it would never be the oldest
		t.touch(e.key)
		e.used = now
	}
	t.total += e.Tree.Size
	t.idle = append(t.idle, candidate{e, l})
	return nil
}

// limit drops idle environments above age and size, and unlocks the others.
func (t *tidying) limit(c *Config) (err error) {
	slices.SortFunc(t.idle, func(a, b candidate) int { return a.used.Compare(b.used) })
	for _, e := range t.idle {
		if (c.MaxAge <= 0 || time.Since(e.used) <= c.MaxAge) && (c.MaxSize <= 0 || t.total <= c.MaxSize) {
			e.lock.close()
			continue
		}
		t.total -= e.Tree.Size
		err = errors.Join(err, t.drop(e))
		t.log("removing environment %s, which was last used at %s", e.ID, e.used.Format(time.RFC3339))
	}
	return err
}

// drop removes the record of an environment, if it has one, so no task uses it any more. (A build that replaces the
// record at the same time may lose its own. Then the next Get builds again.)
func (t *tidying) drop(c candidate) error {
	t.dead = append(t.dead, c)
	if now, err := t.readEntry(c.key); c.key == "" || err == nil && now.ID != c.ID {
		return nil // there is none, or that of a newer environment
	}
	if err := ignoreMissing(os.Remove(t.entryPath(c.key))); err != nil {
		return fmt.Errorf("failed to remove an environment's record: %w", err)
	}
	return nil
}

// remove removes what was dropped. It is the last step, since it may take long, and tasks wait for locked environments
// that have a record.
func (t *tidying) remove(ctx context.Context) error {
	for _, c := range t.dead {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		t.removeTree(t.path("envs", c.ID), t.path("users", c.ID))
		c.lock.close()
	}
	return nil
}
