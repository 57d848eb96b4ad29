// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// entry is the record of an environment, without which a directory below envs is none. The modification time of its
// file is when the environment was last used.
type entry struct {
	Key    string    `json:"key"` // Spec.Key
	Built  time.Time `json:"built"`
	Boot   string    `json:"boot"`   // which of the machine's starts it was built in
	Synced bool      `json:"synced"` // it is on the disk, and so is whole even if the machine went down since
	Tree   tree      `json:"tree"`

	Warnings []string `json:"warnings,omitempty"` // Spec.Warnings
}

const entrySuffix = ".json"

func (s *store) entryPath(id string) string { return s.path("meta", id+entrySuffix) }

// errNotWhole is of an environment that exists and must not be used.
var errNotWhole = errors.New("it is not as it was built")

// unusable reports whether an environment is missing or not whole, and not only unreadable for now.
func unusable(err error) bool { return errors.Is(err, errNotWhole) || errors.Is(err, fs.ErrNotExist) }

// readEntry returns errNotWhole for what a crash left.
func (s *store) readEntry(id string) (entry, error) {
	var e entry
	content, err := os.ReadFile(s.entryPath(id))
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(content, &e); err != nil || e.Tree.Digest == "" {
		return e, errNotWhole
	}
	if !e.survived(task.BootID()) {
		return e, fmt.Errorf("the machine went down before it was on the disk: %w", errNotWhole)
	}
	return e, nil
}

// survived reports whether nothing of it can be lost: the machine has not gone down since, or all was on the disk.
func (e entry) survived(boot string) bool { return e.Synced || e.Boot != "" && e.Boot == boot }

func (s *store) writeEntry(id string, e entry) error {
	content, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(s.entryPath(id), append(content, '\n'))
}

// used records that an environment is used now.
func (s *store) used(id string) {
	now := time.Now()
	if err := os.Chtimes(s.entryPath(id), now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log("failed to record the use of environment %s: %v", id, err)
	}
}

// newest is the latest environment of a key, "" if there is none; next is the name of the one after it, of which
// nothing is left from another.
func (s *store) newest(key string) (newest, next string, err error) {
	last, after := -1, 0
	for _, dir := range []string{"meta", "envs", "users"} {
		names, err := s.names(dir)
		if err != nil {
			return "", "", err
		}
		for _, name := range names {
			k, n, ok := splitID(strings.TrimSuffix(name, entrySuffix))
			if !ok || k != key {
				continue
			}
			after = max(after, n+1)
			if dir == "meta" {
				last = max(last, n)
			}
		}
	}
	if last >= 0 {
		newest = fmt.Sprintf("%s.%d", key, last)
	}
	return newest, fmt.Sprintf("%s.%d", key, after), nil
}

// find returns the environment of a key, locked, or nil if there is none that may be used.
func (s *store) find(ctx context.Context, key string) (*Environment, error) {
	for {
		id, _, err := s.newest(key)
		if id == "" || err != nil {
			return nil, err
		}
		// an exclusive lock is of one that removes it, or of a short check
		l, err := s.waitLock(ctx, id, shared, nil)
		if err != nil {
			return nil, err
		}
		e, err := s.check(id)
		if err == nil {
			s.used(id)
			return &Environment{
				Dir: s.path("envs", id), ID: key[:8], Hit: true, Age: time.Since(e.Built), Size: e.Tree.Size,
				Warnings: e.Warnings, id: id, store: s, lock: l,
			}, nil
		}
		if errors.Is(err, errNotWhole) {
			s.log("environment %s is not used any more: %v", id, err)
			if err := os.Remove(s.entryPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				l.close()
				return nil, fmt.Errorf("failed to remove a broken environment's record: %w", err)
			}
		}
		l.close()
		if !unusable(err) {
			return nil, err
		}
	}
}

// check compares an environment with what it was when it was built.
func (s *store) check(id string) (entry, error) {
	e, err := s.readEntry(id)
	if err != nil {
		return e, err
	}
	now, err := measure(s.path("envs", id))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return e, fmt.Errorf("files are missing: %w", errNotWhole)
	case err != nil:
		return e, err
	case now.Files != e.Tree.Files:
		return e, fmt.Errorf("it has %d files instead of %d: %w", now.Files, e.Tree.Files, errNotWhole)
	case now.Digest != e.Tree.Digest:
		return e, fmt.Errorf("files were changed: %w", errNotWhole)
	}
	return e, nil
}
