// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shadow

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// standIn makes a link at path to what a simulation has in the place of a node, and
// gives that owner and mode. A task gets it, so what it is must be certain: nobody but
// root and this process's user may have put it there.
func (n Node) standIn(path string) error {
	if err := owndir.Check(filepath.Dir(n.Source)); err != nil {
		return err
	}
	fd, err := n.openStandIn()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: n.Source, Err: err}
	}
	// a terminal has the number of another that was closed
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() && int(st.Uid) != n.UID {
		return fmt.Errorf("what %s leads to belongs to user %d, and not to the simulation", n.Source, st.Uid)
	}
	if err := link(n.Source, path); err != nil {
		return err
	}
	return n.ownOpen(fd, n.Source, n.UID, n.GID)
}

var ptyName = regexp.MustCompile(`^/dev/pts/[0-9]+$`)

// openStandIn opens a file, or the pseudo-terminal that a link leads to; no other link
// is followed.
func (n Node) openStandIn() (int, error) {
	source := n.Source
	fd, err := openPath(source)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err != nil {
		err = &fs.PathError{Op: "stat", Path: source, Err: err}
	}
	isLink := err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
	switch {
	case err != nil:
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() && isLink:
		err = fmt.Errorf("%s is a link of user %d", source, st.Uid)
	case isLink:
		defer unix.Close(fd)
		return n.openPty(source)
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1:
		err = fmt.Errorf("%s is neither a file with one name nor a link to a pseudo-terminal: nothing else stands for a "+
			"simulated node", source)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openPty opens the pseudo-terminal that a link leads to.
func (n Node) openPty(link string) (int, error) {
	target, err := os.Readlink(link)
	if err != nil {
		return -1, err
	}
	if !ptyName.MatchString(target) {
		return -1, fmt.Errorf("%s leads to %s, which is not a pseudo-terminal: nothing else is followed in a simulation",
			link, target)
	}
	fd, err := openPath(target)
	if err != nil {
		return -1, err
	}
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(fd, &fsys); err != nil || fsys.Type != unix.DEVPTS_SUPER_MAGIC {
		unix.Close(fd)
		return -1, fmt.Errorf("%s leads to %s, which is not a pseudo-terminal: nothing else is followed in a simulation",
			link, target)
	}
	if !n.Held(target) { // asked after it was opened: what is open is the simulation's then
		unix.Close(fd)
		return -1, fmt.Errorf("%s leads to %s, which no simulated stick has now", link, target)
	}
	return fd, nil
}
