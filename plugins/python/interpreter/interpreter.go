// Package interpreter finds the Python interpreters of a node, and chooses among them.
package interpreter

// Interpreter is one that was found and has answered.
type Interpreter struct {
	Path           string `json:"path"`           // what tasks are started with: the name that leads nowhere else (see preferred)
	Real           string `json:"real"`           // without symbolic links
	Version        string `json:"version"`        // "3.11.2", "3.13.0rc1"
	Minor          string `json:"minor"`          // "3.11"
	Implementation string `json:"implementation"` // "cpython", "pypy" (sys.implementation.name)
	Full           string `json:"full"`           // sys.version, which has the build
	ABI            string `json:"abi"`            // SOABI: "cpython-311-x86_64-linux-gnu"
	Platform       string `json:"platform"`       // sysconfig.get_platform(): "linux-x86_64"
	Libc           string `json:"libc"`           // "glibc 2.36"
	FreeThreaded   bool   `json:"free_threaded"`  // built without the GIL

	// Pip is how this interpreter runs pip: the arguments that come before those of
	// pip itself, ["-m", "pip"] or ["/usr/share/python-wheels/pip-23.0.1-py3-none-any.whl/pip"];
	// nil where it has none. PipVersion is that pip's.
	Pip        []string `json:"pip,omitempty"`
	PipVersion string   `json:"pip_version,omitempty"`

	// Names are all paths under which it was found, Path among them, and Prefix is the
	// directory it is installed in (sys.base_prefix): "/usr".
	Names  []string `json:"names"`
	Prefix string   `json:"prefix"`

	// File is that of Real when it was asked: another inode, size or time is
	// another interpreter.
	File FileID `json:"file"`
}

// FileID tells whether a file is still the same.
type FileID struct {
	Inode   uint64 `json:"inode"`
	Size    int64  `json:"size"`
	ModTime int64  `json:"mod_time"` // nanoseconds since 1970
}
