// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package environment is a node's cache of virtual environments. An environment is built once, by a user that runs no
// tasks, then sealed, and used by any number of tasks. Plugin processes share the cache only through the disk. Even if
// one of them is killed at any point, no task gets an incomplete environment, or loses the environment that it uses.
//
// Below Config.Dir are
//
//	envs/<id>        an environment, finished or being built; the id is random
//	meta/<key>.json  the environment's record: id and digest of the files; written last; without it, envs/<id> is unused
//	users/<id>/      for each task that uses the environment, a link to a directory that exists as long as the task
//	builds/          temporary files of builds
//	lock             a file whose bytes are locked, see type lock
//
// If Config.Builder is nil, tasks run as the owner of the environments and can change them. The next Get detects such a
// change.
package environment

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Config configures a Cache.
type Config struct {
	Dir     string        // absolute; created on first use
	MaxSize int64         // in bytes; 0: no limit
	MaxAge  time.Duration // since the last use; 0: no limit

	// Builder is the user of all builds, nil for this process's user. No task may run as this user: such a task
	// could change an environment while it is built.
	Builder *syscall.Credential

	Log func(format string, args ...any)
}

// Cache manages the environments below a directory. It is safe for concurrent use. Several caches, in any number of
// processes, may share a directory.
type Cache struct {
	cfg    Config
	places chan struct{} // a semaphore that limits concurrent builds
}

// Open returns a cache. Only the first use of the cache reads or creates files.
func Open(cfg Config) *Cache {
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	return &Cache{cfg: cfg, places: make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))}
}

// Spec describes the environment that a caller needs.
type Spec struct {
	// Key describes all inputs of the environment, as readable text without secrets. Secret has the inputs that are
	// secret; only its hash is stored.
	Key, Secret string

	// Interpreter is the only target allowed for absolute links in the environment.
	Interpreter string

	// Fresh is the maximum age of an environment for new tasks; 0: no limit. Without a lock, the same requirements can
	// resolve to newer versions later.
	Fresh time.Duration

	// Build creates the environment in the empty directory dir, as the user Config.Builder. scratch is a directory for
	// temporary files on the same file system. It is removed before dir is sealed, so files in dir may be hard links to
	// files in scratch. Both directories belong to the builder, and so must all files in them. When Build returns, all
	// processes that it started must have ended.
	Build func(ctx context.Context, dir, scratch string) error

	// Waiting is called once if another task or process builds the same environment. May be nil.
	Waiting func()
}

// Environment is an environment in the cache. It is protected from removal until Release.
type Environment struct {
	Dir  string        // read-only
	ID   string        // the first eight characters of Dir's base name, for display
	Hit  bool          // it was in the cache, and not built by this call
	Age  time.Duration // since the build
	Size int64         // bytes; each file counts in blocks of 4 KiB

	id    string // the name of Dir
	store *store
	lock  *lock // a shared lock on id, which protects the environment from removal
}

// Get returns an environment from the cache if it is unchanged and fresh enough, and builds one otherwise. Callers that
// need the same environment, in any process, wait while one of them builds it. If that build fails, the next caller
// builds. Get returns errors of Spec.Build unwrapped.
func (c *Cache) Get(ctx context.Context, s Spec) (*Environment, error) {
	st, err := c.cfg.open()
	if err != nil {
		return nil, err
	}
	key := s.key()
	var building *lock
	defer func() { building.close() }()
	pause := 5 * time.Millisecond
	for {
		env, err := st.find(ctx, key)
		if err != nil || env != nil && env.serves(&s) {
			return env, err
		}
		env.Release()
		if building != nil {
			select {
			case c.places <- struct{}{}:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			defer func() { <-c.places }()
			return st.build(ctx, key, &s)
		}
		if building, err = st.tryLock(s.Key, exclusive); err != nil {
			return nil, err
		}
		if building != nil { // another caller may have finished the build before this one got the lock: look again
			continue
		}
		if s.Waiting != nil {
			s.Waiting()
			s.Waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, 80*time.Millisecond)
		}
	}
}

// serves reports whether an environment is fresh enough for a new task. An environment whose build time is in the
// future is not fresh enough: the clock was wrong then, or is wrong now.
func (e *Environment) serves(s *Spec) bool {
	return s.Fresh <= 0 || e.Age <= s.Fresh && e.Age > -time.Minute
}

// Acquire records that a task uses the environment for as long as the directory stateDir (absolute) exists. Call it
// before the task starts, and Release after stateDir exists: until Release, a missing stateDir does not end the use.
// The record need not survive a crash of the machine, which also ends the task.
func (e *Environment) Acquire(stateDir string) error {
	dir := e.store.path("users", e.id)
	sum := sha256.Sum256([]byte(stateDir))
	err := ignoreExisting(os.Mkdir(dir, 0o700))
	if err == nil {
		err = ignoreExisting(os.Symlink(stateDir, filepath.Join(dir, hex.EncodeToString(sum[:16]))))
	}
	if err != nil {
		return fmt.Errorf("failed to acquire an environment: %w", err)
	}
	return nil
}

// Release ends the protection from removal that began with Get. From then on, only tasks that have acquired the
// environment protect it. Release may be called more than once, and on nil.
func (e *Environment) Release() {
	if e != nil {
		e.lock.close()
	}
}

// build builds an environment and returns it with a shared lock. The caller holds the lock of the key. The environment
// is built at its final path, in a directory that belongs to this process's user, so the builder cannot replace the
// environment as a whole. Errors of Spec.Build are returned unwrapped.
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
		err := os.Mkdir(d, 0o700)
		if err == nil && s.builder != nil {
			err = os.Lchown(d, int(s.builder.Uid), int(s.builder.Gid))
		}
		if err != nil {
			return nil, fmt.Errorf("failed to make a directory for the build: %w", err)
		}
	}
	if err := spec.Build(ctx, dir, scratch); err != nil {
		return nil, err
	}
	s.removeTree(scratch) // before sealing, which refuses files with more than one hard link
	t, err := s.seal(dir, spec.Interpreter)
	if err != nil {
		return nil, fmt.Errorf("failed to seal the environment: %w", err)
	}
	e := entry{ID: id, Key: spec.Key, Built: time.Now(), Boot: task.BootID(), Tree: t, key: key}
	if err := s.writeEntry(e); err != nil {
		return nil, err
	}
	return &Environment{Dir: dir, ID: id[:8], Size: t.Size, id: id, store: s, lock: l}, nil
}
