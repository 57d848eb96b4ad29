// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tidy removes broken environments, what is left of builds, and of the environments that no task uses those above size
// and age. It also makes sure that what was built is on the disk. It does not wait for other tasks or processes: what
// they use is left to the next call.
func (c *Cache) Tidy(ctx context.Context) error {
	s, err := c.cfg.existing()
	if s == nil || err != nil {
		return err
	}
	t := &tidying{store: s}
	err = errors.Join(t.builds(ctx), t.sync(ctx), t.environments(ctx))
	return errors.Join(err, t.limit(ctx, c.cfg.MaxAge, c.cfg.MaxSize))
}

// Usage is what environments take, in bytes, and how many there are.
func (c *Cache) Usage() (size int64, count int, err error) {
	s, err := c.cfg.existing()
	if s == nil || err != nil {
		return 0, 0, err
	}
	ids, err := s.ids("meta")
	if err != nil {
		return 0, 0, err
	}
	for _, id := range ids {
		if e, err := s.readEntry(id); err == nil {
			size += e.Tree.Size
			count++
		}
	}
	return size, count, nil
}

type tidying struct {
	*store
	total int64       // bytes of all that stays
	idle  []candidate // what no task uses
}

type candidate struct {
	id   string
	used time.Time
	size int64
}

// builds removes what killed builds and removals left.
func (t *tidying) builds(ctx context.Context) error {
	names, err := t.names("builds")
	for _, name := range names {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		key, _, _ := strings.Cut(name, ".")
		if key == trashed {
			t.removeTree(t.path("builds", name))
			continue
		}
		l, lockErr := t.tryLock(key, exclusive)
		if l == nil {
			err = errors.Join(err, lockErr)
			continue
		}
		err = errors.Join(err, t.trash(l, t.path("builds", name)))
	}
	return err
}

// sync writes environments that were built since the last time to the disk: then they survive a crash of the machine.
func (t *tidying) sync(ctx context.Context) error {
	unsynced := map[string]string{} // with their digests: a name may be another's meanwhile
	ids, err := t.ids("meta")
	if err != nil {
		return err
	}
	for _, id := range ids {
		if e, err := t.readEntry(id); err == nil && !e.Synced {
			unsynced[id] = e.Tree.Digest
		}
	}
	if len(unsynced) == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	if err := t.syncEnvironments(); err != nil {
		return err
	}
	for id, digest := range unsynced {
		err = errors.Join(err, t.recordSynced(id, digest))
	}
	return err
}

func (s *store) syncEnvironments() error {
	dir, err := os.Open(s.path("envs"))
	if err != nil {
		return fmt.Errorf("failed to write environments to the disk: %w", err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("failed to write environments to the disk: %w", err)
	}
	return nil
}

// recordSynced keeps the time of the record, which is that of the last use.
func (t *tidying) recordSynced(id, digest string) error {
	l, err := t.tryLock(id, exclusive)
	if l == nil {
		return err
	}
	defer l.close()
	info, err := os.Stat(t.entryPath(id))
	if err != nil {
		return ignoreMissing(err)
	}
	e, err := t.readEntry(id)
	if err != nil || e.Tree.Digest != digest {
		return nil // it became broken, or is another one
	}
	e.Synced = true
	if err := t.writeEntry(id, e); err != nil {
		return err
	}
	return os.Chtimes(t.entryPath(id), info.ModTime(), info.ModTime())
}

// environments removes those that are broken or replaced, and counts the others.
func (t *tidying) environments(ctx context.Context) error {
	ids, err := t.ids("meta", "envs", "users")
	if err != nil {
		return err
	}
	newest := map[string]int{} // those that can't be read count only once they are known to be good
	for _, id := range ids {
		if _, err := t.readEntry(id); err == nil {
			key, n, _ := splitID(id)
			newest[key] = n // ids are in order
		}
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		key, n, _ := splitID(id)
		err = errors.Join(err, t.environment(id, n < newest[key]))
	}
	return err
}

// environment decides about one; superseded means that there is a newer one.
func (t *tidying) environment(id string, superseded bool) error {
	size := func() int64 { e, _ := t.readEntry(id); return e.Tree.Size }
	l, err := t.tryLock(id, exclusive)
	if l == nil {
		t.total += size()
		return err
	}
	defer l.close()
	if err := ignoreMissing(os.Remove(t.entryPath(id) + temporarySuffix)); err != nil {
		return err
	}
	inUse, err := t.inUse(id)
	if inUse || err != nil {
		t.total += size()
		return err
	}
	e, err := t.readEntry(id)
	if err == nil {
		_, err = os.Lstat(t.path("envs", id))
	}
	if superseded || unusable(err) {
		return t.discard(id, l)
	}
	if err != nil {
		return err
	}
	info, err := os.Stat(t.entryPath(id))
	if err != nil {
		return err
	}
	used := info.ModTime()
	if now := time.Now(); used.After(now) { // the clock was put back: it would never be the oldest
		t.used(id)
		used = now
	}
	t.total += e.Tree.Size
	t.idle = append(t.idle, candidate{id, used, e.Tree.Size})
	return nil
}

// limit removes what is above age and size.
func (t *tidying) limit(ctx context.Context, maxAge time.Duration, maxSize int64) error {
	err := t.downloads(maxSize)
	slices.SortFunc(t.idle, func(a, b candidate) int { return a.used.Compare(b.used) })
	for _, c := range t.idle {
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if (maxAge <= 0 || time.Since(c.used) <= maxAge) && (maxSize <= 0 || t.total <= maxSize) {
			continue
		}
		removed, removeErr := t.evict(c)
		err = errors.Join(err, removeErr)
		if removed {
			t.total -= c.size
			t.log("removed environment %s, which was last used at %s", c.id, c.used.Format(time.RFC3339))
		}
	}
	return err
}

// evict removes an environment unless it was used since it was looked at.
func (t *tidying) evict(c candidate) (removed bool, err error) {
	l, err := t.tryLock(c.id, exclusive)
	if l == nil {
		return false, err
	}
	defer l.close()
	info, err := os.Stat(t.entryPath(c.id))
	if err != nil || info.ModTime().After(c.used) {
		return false, ignoreMissing(err)
	}
	if inUse, err := t.inUse(c.id); inUse || err != nil {
		return false, err
	}
	return true, t.discard(c.id, l)
}

// unrecorded removes downloads without a record, which a killed build left and no other will use.
func (t *tidying) unrecorded() error {
	l, err := t.tryLock("downloads", exclusive)
	if l == nil {
		return err
	}
	defer l.close()
	names, err := t.names("downloads")
	if err != nil {
		return err
	}
	var left []string
	for _, name := range names {
		dir, isRecord := strings.CutSuffix(name, digestSuffix)
		other := t.path("downloads", name+digestSuffix)
		if isRecord {
			other = t.path("downloads", dir)
		}
		if _, err := os.Lstat(other); errors.Is(err, fs.ErrNotExist) {
			left = append(left, t.path("downloads", name))
		}
	}
	return t.trash(l, left...)
}

// downloads empties them when they take more than a quarter of the cache, and counts them.
func (t *tidying) downloads(maxSize int64) error {
	if err := t.unrecorded(); err != nil {
		return err
	}
	now, failed := measure(t.path("downloads")) // while a build changes them it may
	t.total += now.Size
	if failed == nil && (maxSize <= 0 || now.Size <= maxSize/4) {
		return nil
	}
	l, err := t.tryLock("downloads", exclusive)
	if l == nil {
		return err
	}
	defer l.close()
	if failed != nil {
		if _, failed = measure(t.path("downloads")); failed == nil {
			return nil
		}
		t.log("removing the downloads: %v", failed)
	}
	names, err := t.names("downloads")
	for i, name := range names {
		names[i] = t.path("downloads", name)
	}
	t.total -= now.Size
	return errors.Join(err, t.trash(l, names...))
}

// ids are the environments that some of the cache's directories have anything of, each key's in order.
func (s *store) ids(dirs ...string) ([]string, error) {
	var ids []string
	for _, dir := range dirs {
		names, err := s.names(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			id := strings.TrimSuffix(strings.TrimSuffix(name, temporarySuffix), entrySuffix)
			if _, _, ok := splitID(id); ok {
				ids = append(ids, id)
			}
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		ka, na, _ := splitID(a)
		kb, nb, _ := splitID(b)
		if ka != kb {
			return strings.Compare(ka, kb)
		}
		return na - nb
	})
	return slices.Compact(ids), nil
}
