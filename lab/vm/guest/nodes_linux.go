// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// nodes are the devices whose module is loaded when they are opened, with systemd's modes (depmod's modules.devname).
var nodes = []struct {
	path         string
	mode         uint32
	major, minor uint32
}{
	{"/dev/fuse", 0o666, 10, 229},
	{"/dev/net/tun", 0o666, 10, 200},
	{"/dev/loop-control", 0o600, 10, 237},
}

func makeNodes() error {
	for _, n := range nodes {
		if err := os.MkdirAll(filepath.Dir(n.path), 0o755); err != nil {
			return err
		}
		err := unix.Mknod(n.path, n.mode|unix.S_IFCHR, int(unix.Mkdev(n.major, n.minor)))
		if err != nil && !errors.Is(err, fs.ErrExist) { // a kernel that has it built in makes it
			return fmt.Errorf("failed to make %s: %w", n.path, err)
		}
		if err := unix.Chmod(n.path, n.mode); err != nil { // the umask may have removed bits
			return err
		}
	}
	return nil
}
