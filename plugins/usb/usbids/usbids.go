// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package usbids looks names of vendors and products up in the system's table
// (http://www.linux-usb.org/usb.ids), where one is installed.
package usbids

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// tables are where distributions have it, the first one first.
var tables = []string{"usr/share/hwdata/usb.ids", "usr/share/misc/usb.ids", "var/lib/usbutils/usb.ids"}

// Names has looked up what it was asked for so far; the table itself, some 700 kB,
// is read anew for what it was not. It is used from one goroutine.
type Names struct {
	root  fs.FS
	known map[sysfs.ID]names
}

type names struct{ vendor, product string }

// New looks below root (os.DirFS("/")).
func New(root fs.FS) *Names { return &Names{root, make(map[sysfs.ID]names)} }

// Lookup returns the names, empty where there is no table or it has none.
func (n *Names) Lookup(id sysfs.ID) (vendor, product string) {
	found, ok := n.known[id]
	if !ok {
		for _, name := range tables {
			if table, err := n.root.Open(name); err == nil {
				found = lookup(table, id)
				table.Close()
				break
			}
		}
		n.known[id] = found
	}
	return found.vendor, found.product
}

// lookup reads lines such as these, where vendors come first and classes after
// them in the same form, but with a letter before:
//
//	10c4  Silicon Labs
//		ea60  CP210x UART Bridge
//	C 00  (Defined at Interface level)
func lookup(table io.Reader, id sysfs.ID) (found names) {
	vendor, product := fmt.Appendf(nil, "%04x  ", id.Vendor), fmt.Appendf(nil, "\t%04x  ", id.Product)
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		line := lines.Bytes()
		name, isVendor := bytes.CutPrefix(line, vendor)
		switch {
		case isVendor:
			found.vendor = text(name)
		case found.vendor == "" || len(line) == 0 || line[0] == '#':
		case line[0] != '\t':
			return found // the next vendor
		default:
			if name, ok := bytes.CutPrefix(line, product); ok {
				found.product = text(name)
				return found
			}
		}
	}
	return found
}

func text(b []byte) string { return strings.ToValidUTF8(strings.TrimSpace(string(b)), "\uFFFD") }
