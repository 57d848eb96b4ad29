// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package environment is a node's cache of virtual environments. An environment is built once, by a user of its own,
// then sealed, and used by any number of tasks. Plugin processes share the cache through the disk alone: wherever one
// of them is killed, no incomplete environment is used, and none is removed that a task uses.
//
// Below Config.Dir are
//
//	envs/<key>.<n>      an environment; n counts those of one key, since tasks may still run in an older one
//	meta/<key>.<n>.json what it has to look like; written last, so that what has none is not used
//	users/<key>.<n>/    a file for each task that uses it, with the directory that exists for as long
//	builds/             what is being built, and what is being removed
//	downloads/<n>/      what installers keep between builds, one of them at a time
//	downloads/<n>.digest  what that has to look like before the next build
//	lock                a file whose bytes are locked, see lock.go
//	salt                what secrets are hashed with
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
	places chan struct{} // one is taken for each build: what all at once would take, a node has not
	builds flight        // of this process, by key

	mu     sync.Mutex
	failed map[string]failure // by key: the last build that was to replace an old environment
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

	// Build makes it, as a user (nil: this process's): in dir, which does not exist, to be used at final, with a scratch
	// directory for it and one whose content is kept between builds, "" unless Downloads. These two exist and are
	// the builder's, as is the directory that dir is in; all that Build makes in dir has to be the builder's too.
	// Nothing that it started may run any more when it returns.
	Build func(ctx context.Context, as *Builder, dir, final, scratch, downloads string) error

	// Warnings returns what Build reports to each task that uses the environment, and is called after it. May be nil.
	Warnings func() []string

	// Downloads says that what Build downloads may serve other builds.
	Downloads bool

	// Limit is how long Build may take, with the wait for another process that builds the same, and
	// before that how long others may be built first; 0 is without limit.
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
	ID    string        // eight characters of its key, for people
	Hit   bool          // this call did not build it
	Stale error         // it is older than Spec.Fresh, since this happened when it was to be built anew
	Age   time.Duration // since it was built
	Size  int64         // bytes on the disk

	Warnings []string // of its build

	id    string // <key>.<n>
	store *store
	lock  *lock // shared, on id

	mu sync.Mutex // guards lock
}

// Get returns an environment: one that is there and whole, or a new one. Of all that
// ask at the same time one builds, in whatever process, and the others wait. When it fails those of this
// process that waited get its error, too, unless it failed as its ctx was cancelled: then the next one tries.
// Those of other processes try themselves, one process after the other.
//
// One that is older than Spec.Fresh is returned all the same when building it anew
// fails for a while only (Temporary() true), or takes longer than Spec.Limit or ctx has; Stale says why then.
// The errors of Spec.Build are returned as they are; a full disk is a *FullError, and a place
// that did not become free in time a *BusyError.
func (c *Cache) Get(ctx context.Context, s Spec) (*Environment, error) {
	st, err := c.cfg.open()
	if err != nil {
		return nil, err
	}
	key, err := st.key(ctx, s.Key, s.Secret)
	if err != nil {
		return nil, err
	}
	s.Waiting = onceOrNever(s.Waiting)
	for {
		old, err := st.find(ctx, key)
		if err != nil {
			return nil, err
		}
		if old != nil && old.isFresh(&s) {
			return old, nil
		}
		if err := c.recentFailure(key); old != nil && err != nil {
			old.Stale = err
			return old, nil
		}
		if old != nil && s.Outdated != nil {
			s.Outdated(old.Age)
		}
		var built *Environment
		led, err := c.builds.do(ctx, key, s.Waiting, func() (err error) {
			built, err = c.lead(ctx, st, key, s)
			if old != nil && isTemporary(err) && !errors.Is(ctx.Err(), context.Canceled) {
				c.recordFailure(key, err)
			}
			return err
		})
		if err != nil {
			return fallback(ctx, old, err)
		}
		old.Release()
		if led {
			return built, nil
		}
	}
}

// fallback is the old environment, which may be nil, if the error of the new one is temporary and the caller still
// waits.
func fallback(ctx context.Context, old *Environment, err error) (*Environment, error) {
	if old == nil || !isTemporary(err) || errors.Is(ctx.Err(), context.Canceled) {
		old.Release()
		return nil, err
	}
	old.Stale = err // a time that is over is temporary, too
	return old, nil
}

// lead gets the environment for this call and those of this process that wait for it.
func (c *Cache) lead(ctx context.Context, st *store, key string, s Spec) (*Environment, error) {
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
	limited, cancel := s.limit(ctx)
	defer cancel()
	building, err := st.waitLock(limited, key, exclusive, s.Waiting)
	if err != nil {
		return nil, err
	}
	defer building.close()
	there, err := st.find(limited, key) // another process may have built it meanwhile
	if err != nil || there != nil && there.isFresh(&s) {
		return there, err
	}
	there.Release()
	return st.by(as, s.Interpreter).build(limited, key, s)
}

// takePlace waits until there are fewer builds than may be at once, and for a user that builds.
func (c *Cache) takePlace(ctx context.Context, s Spec) (as *Builder, err error) {
	limited, cancel := s.limit(ctx)
	defer cancel()
	queued := onceOrNever(s.Queued)
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
	return &BusyError{s.Limit}
}

func (s *Spec) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.Limit <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, s.Limit)
}

// BusyError says that other environments were built for all the time that this one could wait.
type BusyError struct{ Waited time.Duration }

func (e *BusyError) Error() string {
	return fmt.Sprintf("no build could begin within %s (build_timeout), since this node was busy with other environments",
		e.Waited)
}

// Temporary says that the same may succeed later, or elsewhere.
func (e *BusyError) Temporary() bool { return true }

// recordFailure is for recentFailure.
func (c *Cache) recordFailure(key string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed[key] = failure{time.Now(), err}
}

// recentFailure is why an environment could not be rebuilt, if that was within Patience.
func (c *Cache) recentFailure(key string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.failed[key]
	if !ok || time.Since(f.at) > c.cfg.Patience {
		delete(c.failed, key)
		return nil
	}
	return f.err
}

// isFresh reports whether an environment may serve a new task. One that was built in the future is old: the clock was
// wrong then, or is now.
func (e *Environment) isFresh(s *Spec) bool {
	limit := s.Fresh
	if !s.Since.IsZero() {
		limit = max(1, time.Since(s.Since))
	}
	return limit <= 0 || e.Age <= limit && e.Age > -time.Minute
}

func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

func onceOrNever(f func()) func() {
	if f == nil {
		return func() {}
	}
	return sync.OnceFunc(f)
}
