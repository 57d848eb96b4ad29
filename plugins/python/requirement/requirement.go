// Package requirement reads what a program requires: lists, requirements files and
// lock files. What comes out is one canonical form, with nothing in it that an
// installer would look up elsewhere on the node.
package requirement

// Set is what is to be installed.
type Set struct {
	// Lines are requirements as in a requirements file, canonical, sorted, each once:
	// "requests[socks]==2.31.0 ; python_version < \"3.13\" --hash=sha256:…".
	Lines []string

	// Constraints bound versions of what is installed besides, in the same form.
	Constraints []string

	// Hashed: each line has hashes, which the installer must insist on.
	Hashed bool

	// Complete: this is a lock, and nothing else is to be installed.
	Complete bool

	// RequiresPython is what a lock says of the interpreter, a PEP 440 specifier.
	RequiresPython string

	// What the file says of where packages are; nil or empty where it says nothing.
	Indexes Indexes

	// URLs are of requirements that name their file ("name @ https://…").
	URLs []string

	// UVLock is set for a uv.lock: the other fields are empty, and uv has to make them
	// of these two files.
	UVLock *UVLock
}

// UVLock is a project that uv locked.
type UVLock struct{ Lock, Project []byte }

// Indexes is where packages come from.
type Indexes struct {
	URL       string   // the index; "" is the next level's choice
	Extra     []string // more indexes
	FindLinks []string // directories and pages with wheels
	Offline   bool     // no index
}

// Reader reads a file of the task by the name the job has for it.
type Reader func(name string) ([]byte, error)

// List reads requirements that are written one by one.
func List(lines []string) (*Set, error) { return &Set{}, nil }

// File reads a requirements file and what it includes.
func File(name string, read Reader) (*Set, error) { return &Set{}, nil }

// Lock reads a lock file: by its name a pylock.toml (pylock.NAME.toml), a uv.lock
// or SCRIPT.lock of uv, or otherwise a requirements file in which each requirement
// has a version and hashes.
func Lock(name string, read Reader) (*Set, error) { return &Set{}, nil }

// Join is what both require.
func (s *Set) Join(other *Set) *Set { return s }

// Empty says whether nothing is to be installed.
func (s *Set) Empty() bool { return s == nil || len(s.Lines) == 0 && s.UVLock == nil }
