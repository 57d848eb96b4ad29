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
//	lock             a file whose bytes are locked, see lock.go
//
// Where Config.Builder is nil, tasks run as the owner of the environments. A task can change one then: the next Get
// notices that, nothing prevents it.
package environment

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Builder is the user and group that build. No task may run as it: it could change what is being built.
type Builder struct{ UID, GID uint32 }

// Config configures a Cache.
type Config struct {
	Dir     string        // absolute; made on first use
	MaxSize int64         // in bytes; 0 is no limit
	MaxAge  time.Duration // since the last use; 0 is no limit

	// Builder is the user of all builds, nil for this process's.
	Builder *Builder

	Log func(format string, args ...any)
}

// Cache is the environments below a directory. It is safe for concurrent use. Several caches, in any number of
// processes, may share a directory.
type Cache struct {
	cfg    Config
	places chan struct{} // a semaphore: one is taken for each build

	mu     sync.Mutex
	failed map[string]failure // the last failed build of each key, for the callers that waited
}

type failure struct {
	at  time.Time
	err error
}

// Open returns a cache. It reads and creates nothing before its first use.
func Open(cfg Config) *Cache {
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	return &Cache{cfg: cfg, places: make(chan struct{}, max(2, runtime.GOMAXPROCS(0))), failed: map[string]failure{}}
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

	// Build creates the environment in dir, which is empty, as the user as (nil: this process's). Scratch is for its
	// temporary files; it is on the same file system, and removed before the environment is sealed, so that files may be
	// linked. The directories belong to the builder, and so must all files that Build creates there. No process that
	// Build started may run any more when it returns.
	Build func(ctx context.Context, as *Builder, dir, scratch string) error

	// Warnings returns messages of Build for each task that uses the environment. It is called after Build. May be nil.
	Warnings func() []string

	// Limit is how long Build may take, and how long it may have to wait for other builds before. The wait for another
	// build of the same environment may take twice as long. 0 is no limit.
	Limit time.Duration

	// Outdated is called before Build if there is an outdated environment. May be nil.
	Outdated func(age time.Duration)

	// Waiting is called once if another task or process builds the same environment, Queued once if the build has to wait
	// for other builds. Both may be nil.
	Waiting, Queued func()
}

// Environment may be used until Release.
type Environment struct {
	Dir  string        // read-only
	ID   string        // the first eight characters of the name of Dir, for people
	Hit  bool          // this call did not build it
	Age  time.Duration // since it was built
	Size int64         // bytes on the disk

	Warnings []string // of its build

	id    string // the name of Dir
	store *store
	lock  *lock // shared, on id

	mu sync.Mutex // guards lock
}

// Get returns an existing environment that is unchanged, or a new one. If several callers need the same, in any
// process, one builds it and the others wait. If that fails, the callers that waited in this process get the same
// error, unless the build was cancelled: then the next caller builds. Callers in other processes build themselves.
//
// The errors of Spec.Build are returned as they are. A full disk, and a place that did not become free in time, are
// temporary errors.
func (c *Cache) Get(ctx context.Context, s Spec) (*Environment, error) {
	env, err := c.get(ctx, &s)
	return env, full(c.cfg.Dir, err)
}

func (c *Cache) get(ctx context.Context, s *Spec) (*Environment, error) {
	begun := time.Now()
	st, err := c.cfg.open()
	if err != nil {
		return nil, err
	}
	key := s.key()
	old, err := st.find(ctx, key)
	if err != nil || old.serves(s) {
		return old, err
	}
	if old != nil && s.Outdated != nil {
		s.Outdated(old.Age)
	}
	old.Release()
	return c.replace(ctx, st, key, s, begun)
}

// replace waits until no other caller or process builds the same, and then builds it unless another has.
func (c *Cache) replace(
	ctx context.Context, st *store, key string, s *Spec, begun time.Time,
) (env *Environment, err error) {
	waiting, cancel := s.limit(ctx, 2)
	defer cancel()
	var building *lock
	defer func() { building.close() }()
	for told := s.Waiting; building == nil; told = nil {
		if building, err = st.tryLock(s.Key, exclusive); err != nil {
			return nil, err
		}
		if building == nil { // all that wait go on together, which only a shared lock allows
			ended, err := st.waitLock(waiting, s.Key, shared, told)
			if err != nil && ctx.Err() == nil && waiting.Err() != nil {
				err = fmt.Errorf("another build of this environment did not end within %s (twice build_timeout): %w", 2*s.Limit,
					err)
			}
			if err != nil {
				return nil, err
			}
			ended.close()
		}
		if err := c.failure(key, begun); err != nil {
			return nil, err
		}
		there, err := st.find(ctx, key)
		if err != nil || there.serves(s) {
			return there, err
		}
		there.Release()
	}
	defer func() {
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			c.recordFailure(key, err)
		}
	}()
	if err = c.takePlace(ctx, s); err != nil {
		return nil, err
	}
	defer func() { <-c.places }()
	limited, cancel := s.limit(ctx, 1)
	defer cancel()
	return st.forPython(s.Interpreter).build(limited, key, s)
}

// takePlace waits until fewer builds run than may run at once.
func (c *Cache) takePlace(ctx context.Context, s *Spec) error {
	select {
	case c.places <- struct{}{}:
		return nil
	default:
	}
	if s.Queued != nil {
		s.Queued()
	}
	limited, cancel := s.limit(ctx, 1)
	defer cancel()
	select {
	case c.places <- struct{}{}:
		return nil
	case <-limited.Done():
		return s.tooBusy(ctx)
	}
}

// tooBusy is the error of ctx, or of a build that could not begin in time.
func (s *Spec) tooBusy(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return temporaryError{fmt.Errorf(
		"no build could begin within %s (build_timeout), since this node was busy with other environments", s.Limit)}
}

// limit returns a context that ends after a multiple of Limit.
func (s *Spec) limit(ctx context.Context, times time.Duration) (context.Context, context.CancelFunc) {
	if s.Limit <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, times*s.Limit)
}

// temporaryError is about a passing state of the node: the same may succeed later, or elsewhere.
type temporaryError struct{ error }

func (e temporaryError) Unwrap() error { return e.error }

// Temporary reports true, by which callers recognise such an error.
func (e temporaryError) Temporary() bool { return true }

// full marks the error of a full disk.
func full(dir string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = fmt.Errorf("the disk of the cache %s is full: free some space, or lower cache_max_size: %w", dir, err)
		return temporaryError{err}
	}
	return err
}

// recordFailure is for failure.
func (c *Cache) recordFailure(key string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, f := range c.failed {
		if time.Since(f.at) > time.Minute {
			delete(c.failed, key)
		}
	}
	c.failed[key] = failure{time.Now(), err}
}

// failure is the error of the last build of a key in this process, if it ended after a time.
func (c *Cache) failure(key string, after time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.failed[key]; f.at.After(after) {
		return f.err
	}
	return nil
}

// serves reports whether an environment, which may be nil, is fresh enough for a new task. One with a build time in the
// future is outdated, since the clock was wrong then, or is wrong now.
func (e *Environment) serves(s *Spec) bool {
	if e == nil {
		return false
	}
	return s.Fresh <= 0 || e.Age <= s.Fresh && e.Age > -time.Minute
}
