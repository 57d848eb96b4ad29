// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package environment is a node's cache of virtual environments. An environment is built once, by a user that runs no
// tasks, then sealed, and used by any number of tasks. Plugin processes share the cache through the disk alone:
// wherever one of them is killed, no incomplete environment is used, and none is removed that a task uses.
//
// Below Config.Dir are
//
//	envs/<id>        an environment, also while it is built; the id is random
//	meta/<key>.json  its id and what it has to look like; written last, so what no record names is not used
//	users/<id>/      for each task that uses it a link to a directory that exists for as long
//	builds/          temporary files of builds
//	lock             a file whose bytes are locked, see type lock
//
// Where Config.Builder is nil, tasks run as the owner of the environments. A task can change one then: the next Get
// notices that, nothing prevents it.
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
	Dir     string        // absolute; made on first use
	MaxSize int64         // in bytes; 0 is no limit
	MaxAge  time.Duration // since the last use; 0 is no limit

	// Builder is the user of all builds, nil for this process's. No task may run as it: it could change what is being
	// built.
	Builder *syscall.Credential

	Log func(format string, args ...any)
}

// Cache is the environments below a directory. It is safe for concurrent use. Several caches, in any number of
// processes, may share a directory.
type Cache struct {
	cfg    Config
	places chan struct{} // a semaphore: one is taken for each build
}

// Open returns a cache. It reads and creates nothing before its first use.
func Open(cfg Config) *Cache {
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	return &Cache{cfg: cfg, places: make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))}
}

// Spec describes the environment that a caller needs.
type Spec struct {
	// Key is everything that the environment depends on, as readable text without secrets. Secret is what else
	// distinguishes it; only its hash is stored.
	Key, Secret string

	// Interpreter is the only file that absolute links in the environment may lead to.
	Interpreter string

	// Fresh is how long after its build an environment may serve new tasks; 0 is indefinitely. (What requirements without
	// a lock resolve to changes with time.)
	Fresh time.Duration

	// Build creates the environment in dir, which is empty, as the user Config.Builder. Scratch is for its temporary
	// files; it is on the same file system, and removed before the environment is sealed, so that files may be linked.
	// The directories belong to the builder, and so must all files that Build creates there. No process that Build
	// started may run any more when it returns.
	Build func(ctx context.Context, dir, scratch string) error

	// Waiting is called once if another task or process builds the same environment. May be nil.
	Waiting func()
}

// Environment may be used until Release.
type Environment struct {
	Dir  string        // read-only
	ID   string        // the first eight characters of the name of Dir, for people
	Hit  bool          // this call did not build it
	Age  time.Duration // since it was built
	Size int64         // bytes on the disk

	id    string // the name of Dir
	store *store
	lock  *lock // shared, on id
}

// Get returns an existing environment that is unchanged, or a new one. If several callers need the same, in any
// process, one builds it and the others wait; if that fails, the next one builds.
//
// The errors of Spec.Build are returned as they are.
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
		if building != nil { // another may have built it just now
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

// serves reports whether an environment is fresh enough for a new task. One with a build time in the future is
// outdated, since the clock was wrong then, or is wrong now.
func (e *Environment) serves(s *Spec) bool {
	return s.Fresh <= 0 || e.Age <= s.Fresh && e.Age > -time.Minute
}

// Acquire records that a task uses the environment for as long as the directory stateDir exists, which is absolute.
// Call it before the task starts, when the directory does not exist yet, and Release after that: until Release nothing
// checks whether the directory exists.
//
// The record need not survive a crash of the machine, because no task does.
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

// Release ends what Get began: from now on only tasks that acquired the environment keep it from removal. It may be
// called more than once, and on nil.
func (e *Environment) Release() {
	if e != nil {
		e.lock.close()
	}
}

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
	s.removeTree(scratch) // first, since sealing copies files that have another name
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
