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

// standIn makes a link at path to a simulated node, and sets the simulated node's owner and mode. This node is a file,
// or the target of a link to a pseudo-terminal. Tasks get access to it, so users other than root and this process's
// must not be able to change its directory, and a terminal must belong to the simulation now.
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
	case isLink && !n.Held(terminal): // after the open: until then, the number can pass to another terminal
		return fmt.Errorf("%s links to %s, not to the terminal of a simulated stick", n.Source, terminal)
	case !isLink && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1):
		return fmt.Errorf("%s is not a simulated node: use a file with a single hard link, or a link to a pseudo-terminal",
			n.Source)
	}
	if err := link(n.Source, path); err != nil {
		return err
	}
	return n.ownOpen(fd, n.Source, n.UID, n.GID)
}
