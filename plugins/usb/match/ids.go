// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"strings"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// IDs names devices by their serial number if it is unique, and by their port otherwise:
//
//	10c4:ea60:0001
//	10c4:ea60@pci-0000:00:14.0-usbv2-0:1.4
//
// IDs remembers each serial number that two devices had at the same time, and never uses it again: the
// remaining device must keep its id when the other is unplugged. The zero value remembers none. Only one
// goroutine may use it.
type IDs struct {
	shared map[serial]bool
}

type serial struct {
	id   sysfs.ID
	text string
}

// maxSerial is the maximum length of a USB string (USB 2.0, 9.6.7). An id with a serial of this length is
// still a valid name of a directory.
const maxSerial = 126

// Name returns the ids of the devices, in their order. The list must contain all devices that are plugged in. The
// ids are unique, and consist of letters, digits and ".:@_-".
func (ids *IDs) Name(devices []sysfs.Device) []string {
	seen := make(map[serial]bool)
	for _, d := range devices {
		s := serial{d.ID, PlainSerial(d.Serial)}
		if seen[s] && s.text != "" {
			if ids.shared == nil {
				ids.shared = make(map[serial]bool)
			}
			ids.shared[s] = true
		}
		seen[s] = true
	}
	names := make([]string, len(devices))
	uses := make(map[string]int)
	for i, d := range devices {
		s := serial{d.ID, PlainSerial(d.Serial)}
		if s.text == "" || len(s.text) > maxSerial || ids.shared[s] {
			names[i] = d.ID.String() + "@" + d.Path
		} else {
			names[i] = d.ID.String() + ":" + s.text
		}
		uses[names[i]]++
	}
	for i, d := range devices {
		if uses[names[i]] > 1 { // if one controller has two buses of the same revision
			names[i] += "-" + d.Name
		}
	}
	return names
}

// PlainSerial replaces the characters of a serial number that separate the parts of an id or the ids in a
// list. Patterns of the option serial also match the result.
func PlainSerial(s string) string { return sysfs.Plain(s, "._-") }

// Directory returns the id as the name of a directory, without colons, which end a path for many programs.
// Different ids have different directories.
func Directory(id string) string { return strings.ReplaceAll(id, ":", "-") }
