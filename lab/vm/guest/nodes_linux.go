// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// forAll are the nodes that udev's own rules (50-udev-default.rules) open to any user.
var forAll = map[string]bool{"fuse": true, "net/tun": true}

// staticNodes makes the nodes that load a module when they are opened: /dev/fuse, /dev/net/tun and the like. The list
// is depmod(8)'s, with lines such as "fuse fuse c10:229".
func staticNodes(list string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return fmt.Errorf("failed to read which nodes modules have: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		var module, name string
		var kind rune
		var major, minor uint32
		if _, err := fmt.Sscanf(line, "%s %s %c%d:%d", &module, &name, &kind, &major, &minor); err != nil {
			continue // a comment
		}
		mode := uint32(0o600)
		if forAll[name] {
			mode = 0o666
		}
		if kind == 'b' {
			mode |= unix.S_IFBLK
		} else {
			mode |= unix.S_IFCHR
		}
		path := filepath.Join("/dev", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(path, mode, int(unix.Mkdev(major, minor))); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("failed to make %s: %w", path, err)
		}
		if err := unix.Chmod(path, mode&0o777); err != nil { // the umask may have removed bits
			return err
		}
	}
	return nil
}
