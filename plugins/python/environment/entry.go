// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// entry is the record of an environment. A directory below envs without a record is never used. The record file's
// modification time is the time of the last use. The file is writable until Tidy has synced the environment to the
// disk. After a reboot, a record that is still writable is not used, because a crash may have lost files.
type entry struct {
	ID    string    `json:"id"`  // the name of its directory below envs
	Key   string    `json:"key"` // Spec.Key
	Built time.Time `json:"built"`
	Boot  string    `json:"boot"` // the machine's boot ID during the build
	Tree  tree      `json:"tree"`

	key  string    // the name of the file, without .json
	used time.Time // the file's modification time
}

const entrySuffix = ".json"

func (s *store) entryPath(key string) string { return s.path("meta", key+entrySuffix) }

// errNotWhole is the error for a record or an environment that exists but must not be used.
var errNotWhole = errors.New("incomplete or changed since the build")

// readEntry reads the record of a key. The error is fs.ErrNotExist if it is missing, and errNotWhole if it is unusable.
func (s *store) readEntry(key string) (entry, error) {
	e := entry{key: key}
	f, err := os.Open(s.entryPath(key))
	if err != nil {
		return e, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return e, err
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return e, err
	}
	e.used = info.ModTime()
	if err := json.Unmarshal(content, &e); err != nil || e.ID == "" || e.Tree.Digest == "" {
		return e, errNotWhole
	}
	if unsynced(info) && (e.Boot == "" || e.Boot != task.BootID()) {
		return e, fmt.Errorf("not synced to disk before the last crash or reboot: %w", errNotWhole)
	}
	return e, nil
}

func unsynced(info fs.FileInfo) bool { return info.Mode()&0o200 != 0 }

// writeEntry replaces the record of a key. It first writes a file in builds, where Tidy removes a crash's leftovers.
func (s *store) writeEntry(e entry) error {
	content, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	temporary := s.path("builds", e.ID+entrySuffix)
	defer os.Remove(temporary)
	if err = os.WriteFile(temporary, append(content, '\n'), 0o600); err == nil {
		err = os.Rename(temporary, s.entryPath(e.key))
	}
	if err != nil {
		return fmt.Errorf("failed to write an environment's record: %w", err)
	}
	return nil
}

// entries returns all records by environment id. It removes records that must not be used, and fails if it cannot read
// a record.
func (s *store) entries() (map[string]entry, error) {
	names, err := s.names("meta")
	if err != nil {
		return nil, err
	}
	found := map[string]entry{}
	for _, name := range names {
		e, err := s.readEntry(strings.TrimSuffix(name, entrySuffix))
		if err == nil {
			found[e.ID] = e
		} else if errors.Is(err, errNotWhole) {
			err = os.Remove(s.path("meta", name))
		}
		if ignoreMissing(err) != nil {
			return nil, fmt.Errorf("failed to read the records of environments: %w", err)
		}
	}
	return found, nil
}

// touch sets the time of an environment's last use to now.
func (s *store) touch(key string) {
	now := time.Now()
	if err := ignoreMissing(os.Chtimes(s.entryPath(key), now, now)); err != nil {
		s.log("failed to record the use of an environment: %v", err)
	}
}

// find returns the environment of a key, with a shared lock on it, or nil if no environment exists that may be used.
func (s *store) find(ctx context.Context, key string) (*Environment, error) {
	for {
		e, err := s.readEntry(key)
		var l *lock
		if err == nil {
			if l, err = s.tryLock(e.ID, shared); err != nil {
				return nil, err
			}
			if l == nil { // Tidy has the lock; to remove an environment, it first removes the record, so the wait is short
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(5 * time.Millisecond):
				}
				continue
			}
			if now, changed := s.readEntry(key); changed != nil || now.ID != e.ID {
				l.close()
				continue // the record was removed or replaced before the lock was taken: look again
			}
			err = s.check(e)
		}
		switch {
		case err == nil:
			s.touch(key)
			return &Environment{
				Dir: s.path("envs", e.ID), ID: e.ID[:8], Hit: true, Age: time.Since(e.Built), Size: e.Tree.Size,
				id: e.ID, store: s, lock: l,
			}, nil
		case errors.Is(err, errNotWhole):
			s.log("environment %q is no longer used: %v", e.ID, err)
			err = nil
		}
		l.close()
		return nil, ignoreMissing(err)
	}
}

// check returns errNotWhole if the files of an environment are no longer those of its build.
func (s *store) check(e entry) error {
	now, err := measure(s.path("envs", e.ID))
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.Digest != e.Tree.Digest {
		return fmt.Errorf("files were changed, added or removed (%d now, %d after the build): %w",
			now.Files, e.Tree.Files, errNotWhole)
	}
	return err
}

// Cached describes an environment in the cache for display.
type Cached struct {
	ID    string    `json:"id"` // as Environment.ID
	Dir   string    `json:"dir"`
	Key   string    `json:"key"` // Spec.Key
	Built time.Time `json:"built"`
	Used  time.Time `json:"used"` // when a task last got the environment
	Size  int64     `json:"size"` // bytes, as Environment.Size

	Tasks    []string `json:"tasks"`    // the state directories of the tasks that use it
	Packages []string `json:"packages"` // "rich-13.9.4"
}

// List returns the environments that tasks can get, the least recently used first. If the cache does not exist, List
// does not create it, and the error is fs.ErrNotExist.
func (c *Cache) List() ([]Cached, error) {
	if _, err := os.Stat(filepath.Join(c.cfg.Dir, "meta")); err != nil {
		return nil, fmt.Errorf("%s is not a cache of environments: %w", c.cfg.Dir, err)
	}
	s, err := c.cfg.open()
	if err != nil {
		return nil, err
	}
	entries, err := s.entries()
	if err != nil {
		return nil, err
	}
	all := []Cached{}
	for _, e := range entries {
		running, _, err := s.users(e.ID)
		if err != nil {
			return nil, err
		}
		one := Cached{ID: e.ID[:8], Dir: s.path("envs", e.ID), Key: e.Key, Built: e.Built, Used: e.used, Size: e.Tree.Size,
			Tasks: []string{}, Packages: []string{}}
		for _, link := range running {
			if task, err := os.Readlink(link); err == nil { // fails if the task has just ended
				one.Tasks = append(one.Tasks, task)
			}
		}
		infos, _ := filepath.Glob(filepath.Join(one.Dir, "lib/*/site-packages/*.dist-info"))
		for _, info := range infos {
			one.Packages = append(one.Packages, strings.TrimSuffix(filepath.Base(info), ".dist-info"))
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Cached) int { return a.Used.Compare(b.Used) })
	return all, nil
}

// users returns the links of running tasks to an environment, and the links of ended tasks.
func (s *store) users(id string) (running, ended []string, err error) {
	names, err := s.names(filepath.Join("users", id))
	for _, name := range names {
		link := s.path("users", id, name)
		_, err := os.Stat(link)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			ended = append(ended, link)
		} else {
			running = append(running, link)
		}
	}
	return running, ended, ignoreMissing(err)
}
