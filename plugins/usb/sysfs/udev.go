// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// AddUdev adds the properties of a device and of its nodes from udev's database, if udev runs. The database
// has lines E:KEY=value in files such as run/udev/data/c189:3 (systemd,
// src/libsystemd/sd-device/device-private.c). udev writes the properties after the device appears.
func AddUdev(root fs.FS, d *Device) {
	for _, n := range d.Nodes {
		kind := "c"
		if n.Block {
			kind = "b"
		}
		text, err := fs.ReadFile(root, fmt.Sprintf("run/udev/data/%s%d:%d", kind, n.Major, n.Minor))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			line, isProperty := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "E:")
			key, value, ok := strings.Cut(line, "=")
			if !isProperty || !ok || slices.Contains(d.Udev[key], value) {
				continue
			}
			if d.Udev == nil {
				d.Udev = map[string][]string{}
			}
			d.Udev[key] = append(d.Udev[key], value)
		}
	}
}
