// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package environment is a node's cache of virtual environments. An environment is built once, by a user of its own,
// then sealed, and used by any number of tasks. Plugin processes share the cache through the disk alone: wherever one
// of them is killed, no incomplete environment is used, and none is removed that a task uses.
//
// Below Config.Dir are
//
//	envs/<id>        an environment, also while it is built; the id is random
//	meta/<key>.json  its id and what it has to look like; written last, so what no record names is not used
//	users/<id>/      for each task that uses it a link to a directory that exists for as long
//	builds/          temporary files of builds
//	downloads/<n>/   what installers keep between builds, for one of them at a time
//	lock             a file whose bytes are locked, see lock.go
//
// Where Config.Builders is nil, tasks run as the user that the environments belong to, and so could change one: that is
// noticed at the next Get, not prevented.
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

// Config is what a Cache needs to know.
type Config struct {
	Dir     string        // absolute; made on first use
	MaxSize int64         // bytes, 0 is without limit
	MaxAge  time.Duration // without use, 0 is without limit

	// Builders gives each build a user of its own, and calls waiting, which may be nil, before it waits for one
	// (Users.Take). It is nil where this process's user builds.
	Builders func(ctx context.Context, waiting func()) (*Builder, error)

	// Patience is for how long an old environment (Spec.Fresh) is used without another try
	// after it could not be built anew: an index that hangs would hold up each start.
	Patience time.Duration

	Log func(format string, args ...any)
}

// Cache is the environments below a directory. It is safe for concurrent use, and so are
// several of one directory, in any number of processes.
type Cache struct {
	cfg    Config
	places chan struct{} // a semaphore: one is taken for each build

	mu     sync.Mutex
	failed map[string]failure // by key: the last build, for those that waited for it, and for Patience
}

type failure struct {
	at  time.Time
	err error
}

// Open returns a cache. Nothing is read or made before its first use.
func Open(cfg Config) *Cache {
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	return &Cache{cfg: cfg, places: make(chan struct{}, max(2, runtime.GOMAXPROCS(0))), failed: map[string]failure{}}
}

// Spec says which environment is wanted.
type Spec struct {
	// Key is everything that the environment depends on, as text that a person can read,
	// without secrets; Secret is what else distinguishes it and is only hashed.
	Key, Secret string

	// Interpreter is the file that absolute links in the environment may lead to; any other is refused.
	Interpreter string

	// Fresh is for how long after its build an environment is good for new tasks; 0 is indefinitely. (Of
	// requirements that are not locked the meaning changes with time.)
	Fresh time.Duration

	// Since replaces Fresh for a caller that wants a new build: an environment that was built before it is outdated. The
	// zero value accepts any.
	Since time.Time

	// Build makes it, as a user (nil: this process's): in dir, which is empty, with a scratch directory for it and one
	// whose content is kept between builds, "" unless Downloads. These three are the builder's, and all that Build makes
	// in them has to be, too. Nothing that it started may run any more when it returns.
	Build func(ctx context.Context, as *Builder, dir, scratch, downloads string) error

	// Warnings returns what Build reports to each task that uses the environment, and is called after it. May be nil.
	Warnings func() []string

	// Downloads says that what Build downloads may serve other builds.
	Downloads bool

	// Limit is how long Build may take, and before that how long others may be built first; the wait for another that
	// builds the same may take both. 0 is without limit.
	Limit time.Duration

	// Outdated is called before Build is where there is an environment that is not Fresh any more. May be nil.
	Outdated func(age time.Duration)

	// Waiting is called, once, when another task or process builds it, and Queued when it has to wait
	// until others are built. May be nil.
	Waiting, Queued func()
}

// Environment is one that may be used until Release.
type Environment struct {
	Dir   string        // read-only
	ID    string        // the first eight characters of the name of Dir, for people
	Hit   bool          // this call did not build it
	Stale error         // it is older than Spec.Fresh, since this happened when it was to be built anew
	Age   time.Duration // since it was built
	Size  int64         // bytes on the disk

	Warnings []string // of its build

	id    string // the name of Dir
	store *store
	lock  *lock // shared, on id

	mu sync.Mutex // guards lock
}

// Get returns an environment: one that exists and is whole, or a new one. If several callers ask at the same time, in
// any process, one builds and the others wait. When it fails, those of this process that waited get its error, too,
// unless it failed because its ctx was cancelled: then the next one tries. Those of other processes try themselves.
//
// An environment that is older than Spec.Fresh is returned nevertheless if building a new one fails temporarily
// (Temporary() true), or takes longer than Spec.Limit or ctx allows; then Stale has the reason.
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
	if err = c.failure(key, begun.Add(-c.cfg.Patience)); old == nil || !isTemporary(err) {
		if old != nil && s.Outdated != nil {
			s.Outdated(old.Age)
		}
		var env *Environment
		if env, err = c.replace(ctx, st, key, s, begun); err == nil {
			old.Release()
			return env, nil
		}
	}
	if old == nil || !isTemporary(err) || errors.Is(ctx.Err(), context.Canceled) {
		old.Release()
		return nil, err
	}
	old.Stale = full(c.cfg.Dir, err)
	return old, nil
}

// replace waits until no other caller or process builds the same, and builds it if that is still necessary.
func (c *Cache) replace(
	ctx context.Context, st *store, key string, s *Spec, begun time.Time,
) (env *Environment, err error) {
	waiting, cancel := s.limit(ctx, 2)
	defer cancel()
	building, err := st.waitLock(waiting, s.Key, exclusive, s.Waiting)
	if err != nil {
		return nil, err
	}
	defer building.close()
	if err := c.failure(key, begun); err != nil {
		return nil, err
	}
	there, err := st.find(ctx, key)
	if err != nil || there.serves(s) {
		return there, err
	}
	there.Release()
	defer func() {
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			c.recordFailure(key, err)
		}
	}()
	as, err := c.takePlace(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() {
		if as != nil {
			as.Release()
		}
		<-c.places
	}()
	limited, cancel := s.limit(ctx, 1)
	defer cancel()
	return st.by(as, s.Interpreter).build(limited, key, s)
}

// takePlace waits until there are fewer builds than may be at once, and for a user that builds.
func (c *Cache) takePlace(ctx context.Context, s *Spec) (as *Builder, err error) {
	limited, cancel := s.limit(ctx, 1)
	defer cancel()
	queued := func() {}
	if s.Queued != nil {
		queued = sync.OnceFunc(s.Queued)
	}
	select {
	case c.places <- struct{}{}:
	default:
		queued()
		select {
		case c.places <- struct{}{}:
		case <-limited.Done():
			return nil, s.tooBusy(ctx)
		}
	}
	if c.cfg.Builders == nil {
		return nil, nil
	}
	if as, err = c.cfg.Builders(limited, queued); err != nil {
		<-c.places
		if limited.Err() != nil {
			err = s.tooBusy(ctx)
		}
		return nil, err
	}
	return as, nil
}

// tooBusy is the error of a build that could not begin in time, or that of ctx.
func (s *Spec) tooBusy(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return temporaryError{fmt.Errorf(
		"no build could begin within %s (build_timeout), since this node was busy with other environments", s.Limit)}
}

// limit returns a context that ends after some times Limit.
func (s *Spec) limit(ctx context.Context, times time.Duration) (context.Context, context.CancelFunc) {
	if s.Limit <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, times*s.Limit)
}

// temporaryError is the error of a state of the node that passes: the same may succeed later, or elsewhere.
type temporaryError struct{ error }

func (e temporaryError) Unwrap() error { return e.error }

// Temporary is what callers look for.
func (e temporaryError) Temporary() bool { return true }

func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

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
		if time.Since(f.at) > max(c.cfg.Patience, time.Minute) {
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

// serves reports whether an environment, which may be nil, is fresh enough for a new task. One that was built in the
// future is old: the clock was wrong then, or is now.
func (e *Environment) serves(s *Spec) bool {
	if e == nil {
		return false
	}
	limit := s.Fresh
	if !s.Since.IsZero() {
		limit = max(1, time.Since(s.Since))
	}
	return limit <= 0 || e.Age <= limit && e.Age > -time.Minute
}
