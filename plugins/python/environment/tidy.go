// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// candidate is an environment that no task uses. Its exclusive lock keeps tasks from acquiring it.
type candidate struct {
	entry
	lock *lock
}

// Tidy removes broken environments, leftovers of builds, and environments that no task uses: those unused for MaxAge
// and, while the cache exceeds MaxSize, the least recently used. It also syncs new environments to the disk. It does
// not wait for tasks or other processes: environments that they use now are left to a later call.
func (c *Cache) Tidy(ctx context.Context) error {
	if _, err := os.Stat(c.cfg.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	s, err := c.cfg.open()
	if err != nil {
		return err
	}
	idle, total, err := s.unused(ctx)
	slices.SortFunc(idle, func(a, b candidate) int { return a.used.Compare(b.used) })
	var dead []candidate
	for _, e := range idle {
		old := c.cfg.MaxAge > 0 && time.Since(e.used) > c.cfg.MaxAge
		large := c.cfg.MaxSize > 0 && total > c.cfg.MaxSize
		recorded := e.key != ""
		if recorded && !old && !large {
			e.lock.close()
			continue
		}
		if recorded {
			total -= e.Tree.Size
			s.log("removing environment %s, which was last used at %s", e.ID, e.used.Format(time.RFC3339))
			err = errors.Join(err, s.forget(e.entry))
		}
		dead = append(dead, e)
	}
	// all records were removed before, because this can be slow: a task waits for a locked environment that has a record
	for _, e := range dead {
		if ctx.Err() == nil {
			s.removeTree(s.path("envs", e.ID), s.path("users", e.ID))
		}
		e.lock.close()
	}
	return errors.Join(err, s.removeLeftovers(), s.sync(), ctx.Err())
}

// unused locks and returns the environments that no task uses. total is the size of all environments with a record.
func (s *store) unused(ctx context.Context) (idle []candidate, total int64, err error) {
	envs, err := s.names("envs")
	users, usersErr := s.names("users")
	entries, entriesErr := s.entries()
	if err = errors.Join(err, usersErr, entriesErr); err != nil {
		return nil, 0, err
	}
	ids := slices.AppendSeq(slices.Concat(envs, users), maps.Keys(entries))
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if ctx.Err() != nil {
			break
		}
		l, failed := s.tryLock(id, exclusive)
		e, recorded := entries[id]
		if !recorded && l != nil { // maybe it was built after the records were read: read them again
			entries, failed = s.entries()
			e, recorded = entries[id]
		}
		total += e.Tree.Size
		used := true
		if l != nil && failed == nil {
			used, failed = s.inUse(id, func() {
				e.used = time.Now()
				if recorded {
					s.touch(e.key) // the last task may have ended just now
				}
			})
		}
		err = errors.Join(err, failed)
		if used || failed != nil {
			l.close()
			continue
		}
		e.ID = id
		idle = append(idle, candidate{e, l})
	}
	return idle, total, err
}

// forget removes the record of an environment, so no new task gets it. It may remove a newer record that a build writes
// at the same moment: then the next Get builds again.
func (s *store) forget(e entry) error {
	if now, err := s.readEntry(e.key); err == nil && now.ID != e.ID {
		return nil // the record belongs to a newer environment
	}
	return ignoreMissing(os.Remove(s.entryPath(e.key)))
}

// removeLeftovers removes the temporary files of builds whose process was killed.
func (s *store) removeLeftovers() error {
	names, err := s.names("builds")
	for _, name := range names {
		id, _, _ := strings.Cut(name, ".")
		l, lockErr := s.tryLock(id, exclusive)
		err = errors.Join(err, lockErr)
		if l != nil {
			s.removeTree(s.path("builds", name))
			l.close()
		}
	}
	return err
}

// sync writes all new environments to the disk. It then marks the records that existed before the write as synced.
func (s *store) sync() error {
	names, err := s.names("meta")
	if err != nil {
		return err
	}
	var pending []*os.File
	for _, name := range names {
		f, err := os.Open(s.path("meta", name))
		if err != nil {
			continue // removed by another process
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
		return fmt.Errorf("failed to sync environments to disk: %w", err)
	}
	for _, f := range pending {
		err = errors.Join(err, f.Chmod(0o400))
	}
	return err
}

// inUse reports whether a running task uses an environment. For each ended task, it calls the function used, and
// removes the link. The caller holds the exclusive lock, so no other task can acquire the environment during the call.
func (s *store) inUse(id string, used func()) (bool, error) {
	running, ended, err := s.users(id)
	for _, link := range ended {
		used()
		if err := os.Remove(link); err != nil {
			return false, fmt.Errorf("failed to remove an ended task's link to its environment: %w", err)
		}
	}
	return len(running) > 0, err
}
