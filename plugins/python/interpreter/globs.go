// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// defaultGlobs are where interpreters usually are: those of the distribution, of /usr/local, /opt/python and
// /opt/pypy*, and those that uv and pyenv installed, for all users or for this process's.
func defaultGlobs() []string {
	// python3* and pypy3*, of all that is named as an interpreter: a directory is read for each glob
	const either = "/p*3*"
	globs := []string{"/usr/bin" + either, "/usr/local/bin" + either, "/opt/python/*/bin" + either,
		"/opt/pypy*/bin" + either}
	managed := func(dir string, below ...string) {
		if filepath.IsAbs(dir) {
			dir = literal.Replace(filepath.Join(append([]string{dir}, below...)...))
			globs = append(globs, dir+"/*/bin"+either)
		}
	}
	home, _ := os.UserHomeDir() // without one there is nothing of the user's
	managed("/usr/local/share/uv/python")
	managed(os.Getenv("UV_PYTHON_INSTALL_DIR"))
	managed(os.Getenv("XDG_DATA_HOME"), "uv/python")
	managed(home, ".local/share/uv/python")
	managed("/opt/pyenv/versions")
	managed(os.Getenv("PYENV_ROOT"), "versions")
	managed(home, ".pyenv/versions")
	return globs
}

// literal is a path as a glob that matches nothing else.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// programName matches interpreters, and not what is installed beside them, such as python3-config, python3.11-gdb.py
// and pypy3compile.
var programName = regexp.MustCompile(`^(python|pypy)(3(\.[0-9]+)?t?)?$`)

// minorName is one that names a minor version.
var minorName = regexp.MustCompile(`^(python|pypy)3\.[0-9]+t?$`)

// matching are the paths that a glob matches; one without wildcards may name any file.
func matching(glob string) ([]string, error) {
	paths, err := filepath.Glob(glob)
	if err != nil || !strings.ContainsAny(glob, `*?[`) {
		return paths, err
	}
	var programs []string
	for _, p := range paths {
		if programName.MatchString(filepath.Base(p)) {
			programs = append(programs, p)
		}
	}
	return programs, nil
}

// preferred is the name of a file that tasks are started with: the file itself, or else one with its minor version,
// such as /usr/bin/python3.11. The target of /usr/bin/python3 changes when the distribution is upgraded, and with it
// the interpreter of environments.
func preferred(names []string, real string) string {
	for _, n := range names {
		if n == real {
			return n
		}
	}
	for _, n := range names {
		if minorName.MatchString(filepath.Base(n)) {
			return n
		}
	}
	return names[0]
}
