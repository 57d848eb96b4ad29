// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shadow

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// standIn makes a link at path to what stands for the node in a simulation, and sets its
// owner and mode: a file, or the pseudo-terminal that a link leads to. A task gets it, so
// only root and this process's user may be able to change the directory that it is in, and
// no link of theirs is followed but to a terminal that the simulation has now.
func (n Node) standIn(path string) error {
	if err := owndir.Check(filepath.Dir(n.Source)); err != nil {
		return err
	}
	terminal, err := os.Readlink(n.Source)
	isLink := err == nil
	source := n.Source
	if isLink {
		source = terminal
	}
	fd, err := openPath(source)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: source, Err: err}
	}
	switch {
	case isLink && !n.Held(terminal): // which is asked after the terminal was opened, since its number may be reused
		return fmt.Errorf("%s leads to %s, which no simulated stick has now", n.Source, terminal)
	case !isLink && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1):
		return fmt.Errorf("%s is neither a file with one name nor a link to a pseudo-terminal: nothing else stands for a "+
			"simulated node", n.Source)
	}
	if err := link(n.Source, path); err != nil {
		return err
	}
	return n.ownOpen(fd, n.Source, n.UID, n.GID)
}
