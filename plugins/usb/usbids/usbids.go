// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package usbids looks up names of USB vendors and products in the system's table
// (http://www.linux-usb.org/usb.ids), if one is installed.
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

// tables are the paths of the table in different distributions. The first that exists is used.
var tables = []string{"usr/share/hwdata/usb.ids", "usr/share/misc/usb.ids", "var/lib/usbutils/usb.ids"}

// Names caches the results of Lookup, which otherwise reads the table, of some 700 kB. Only one goroutine may use it.
type Names map[sysfs.ID]names

type names struct{ vendor, product string }

// Lookup returns the names in the table below root, such as os.DirFS("/"). A name is empty if the table is
// missing or does not have the name.
func (n Names) Lookup(root fs.FS, id sysfs.ID) (vendor, product string) {
	found, ok := n[id]
	if !ok {
		for _, name := range tables {
			if table, err := root.Open(name); err == nil {
				found = lookup(table, id)
				table.Close()
				break
			}
		}
		n[id] = found
	}
	return found.vendor, found.product
}

// lookup finds the names in a table with lines such as these. The classes follow after the last vendor. Their lines
// differ in the letter at the start:
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
