// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// sealing makes a tree ours and read-only. Another process may still have files and directories of it open. Writing to
// an open file changes its times, which the next Get notices.
type sealing struct {
	from   uint32 // the owner so far: the builder
	python string // where links to the interpreter lead
}

// seal takes over what was built, and returns what it looks like afterwards.
func (s *store) seal(dir string) (tree, error) {
	return walk(dir, &sealing{from: s.builtBy(), python: s.python})
}

// builtBy is the user that builds.
func (s *store) builtBy() uint32 {
	if s.builder == nil {
		return uint32(os.Geteuid())
	}
	return s.builder.UID
}

// enter makes a directory ours before it is read. After that no other user can replace what is in it.
func (s *sealing) enter(fd int, rel string, st *unix.Stat_t) error {
	if err := s.checkOwner(rel, st); err != nil {
		return err
	}
	if int(s.from) != os.Geteuid() {
		if err := unix.Fchown(fd, os.Geteuid(), os.Getegid()); err != nil {
			return changing(rel, err)
		}
	}
	return changing(rel, unix.Fchmod(fd, 0o700))
}

// leave is called after all that is in a directory.
func (s *sealing) leave(fd int, rel string) error {
	return changing(rel, unix.Fchmod(fd, 0o555))
}

// checkOwner refuses files that the builder linked or moved from elsewhere.
func (s *sealing) checkOwner(rel string, st *unix.Stat_t) error {
	if st.Uid != s.from {
		return fmt.Errorf("%s belongs to user %d instead of %d, the builder", path.Join(".", rel), st.Uid, s.from)
	}
	return nil
}

// changing adds the file to an error.
func changing(rel string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: "change", Path: path.Join(".", rel), Err: err}
}

// entry takes over a file or a link, and refuses anything else.
func (s *sealing) entry(dir int, name, rel string, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return s.file(dir, name, rel, st)
	case unix.S_IFLNK:
		return s.link(dir, name, rel)
	}
	return fmt.Errorf("%s is neither a file, a directory nor a link", rel)
}

func (s *sealing) file(dir int, name, rel string, st *unix.Stat_t) error {
	if err := s.checkOwner(rel, st); err != nil {
		return err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		return fmt.Errorf("%s is to run as another user (set-user-ID or set-group-ID)", rel)
	}
	mode := uint32(0o444)
	if st.Mode&0o111 != 0 {
		mode = 0o555
	}
	if st.Nlink > 1 {
		return fmt.Errorf("%s has another name, by which it could be changed", rel)
	}
	err := s.take(dir, name)
	if err == nil {
		err = retry(func() error { return unix.Fchmodat(dir, name, mode, 0) })
	}
	return changing(rel, err)
}

func (s *sealing) take(dir int, name string) error {
	if int(s.from) == os.Geteuid() {
		return nil
	}
	return unix.Fchownat(dir, name, os.Geteuid(), os.Getegid(), unix.AT_SYMLINK_NOFOLLOW)
}

func (s *sealing) link(dir int, name, rel string) error {
	target, err := readLink(dir, name)
	if err != nil {
		return changing(rel, err)
	}
	if path.IsAbs(target) && path.Dir(rel) == "bin" && interpreterName.MatchString(name) {
		// the builder's may lead through links of other users, or through /proc/PID, which can change later
		if err := unix.Unlinkat(dir, name, 0); err != nil {
			return changing(rel, err)
		}
		return changing(rel, unix.Symlinkat(s.python, dir, name))
	}
	if err := checkLink(rel, target); err != nil {
		return err
	}
	return changing(rel, s.take(dir, name))
}

// interpreterName matches the links that make a virtual environment.
var interpreterName = regexp.MustCompile(`^(?:python|pypy)[0-9.]*t?$`)

// checkLink allows relative links that stay inside. A ".." is only allowed at the start: after another link it would
// lead elsewhere.
func checkLink(rel, target string) error {
	below := strings.Count(rel, "/") // how many ".." lead to the environment itself
	parts := strings.Split(target, "/")
	if path.IsAbs(target) {
		below = -1
	}
	for len(parts) > 0 && (parts[0] == ".." || parts[0] == "." || parts[0] == "") {
		if parts[0] == ".." {
			below--
		}
		parts = parts[1:]
	}
	for _, p := range parts {
		if p == ".." {
			below = -1
		}
	}
	if below < 0 {
		return fmt.Errorf("%s is a link to %s, outside of the environment", rel, target)
	}
	return nil
}
