// Package environment is the cache of environments on a node. Plugin processes
// share it through the disk alone: whichever is killed at whatever moment, no
// environment is used that is not whole, and none is removed that a task uses.
package environment

import (
	"context"
	"time"
)

// Config is what a Cache needs to know.
type Config struct {
	Dir     string        // absolute; made on first use
	MaxSize int64         // bytes
	MaxAge  time.Duration // without use
	Builder *Builder      // who builds, nil where it is this process's user
	Log     func(format string, args ...any)
}

// Builder is a user that owns nothing else on the node.
type Builder struct{ UID, GID uint32 }

// Cache is the environments below a directory. It is safe for concurrent use, and so are
// several of one directory, in any number of processes.
type Cache struct{ cfg Config }

// Open returns a cache. Nothing is read or made before its first use.
func Open(cfg Config) *Cache { return &Cache{cfg: cfg} }

// Spec says which environment is wanted.
type Spec struct {
	// Key is everything that the environment depends on, as text that a person can read,
	// without secrets; Secret is what else distinguishes it and is only hashed.
	Key, Secret string

	// Fresh is for how long after its build an environment is good for new tasks; 0 is for ever. (Of
	// requirements that are not locked the meaning changes with time.)
	Fresh time.Duration

	// Build makes it: in dir, which does not exist, to be used at final, with a scratch directory for it
	// and one whose content is kept between builds. The latter three exist and
	// are the builder's. It must be over when it returns.
	Build func(ctx context.Context, dir, final, scratch, downloads string) error

	// Waiting is called, once, when another task or process builds it. May be nil.
	Waiting func()
}

// Environment is one that may be used until Release.
type Environment struct {
	Dir   string        // read-only
	ID    string        // eight characters of its key, for people
	Hit   bool          // it was there
	Stale error         // it is older than Spec.Fresh, since this happened when it was to be built anew
	Age   time.Duration // since it was built
	Size  int64         // bytes
}

// Get returns an environment: one that is there and whole, or a new one. Of all that
// ask at the same time one builds, in whatever process, and the others wait; when it
// fails each of them tries itself, one after the other, unless the build says that it is
// of no use (an error with Temporary() false), which they get too within this process.
func (c *Cache) Get(ctx context.Context, s Spec) (*Environment, error) { return nil, nil }

// Lend writes down that a task uses the environment for as long as the directory
// stateDir exists. Call it before Release.
func (e *Environment) Lend(stateDir string) error { return nil }

// Release ends what Get began: from now on only borrowers keep the environment from removal. It may be called twice.
func (e *Environment) Release() {}

// Tidy removes what nobody will use: broken environments, what is left of builds, and
// of environments that no task uses those above size and age.
func (c *Cache) Tidy(ctx context.Context) error { return nil }

// Usage is what environments take, in bytes, and how many there are.
func (c *Cache) Usage() (size int64, count int, err error) { return 0, 0, nil }
