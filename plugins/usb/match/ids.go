// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"strings"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// IDs names devices by their serial where that tells them apart, and by where they
// are plugged in where it does not:
//
//	10c4:ea60:0001
//	10c4:ea60@pci-0000:00:14.0-usbv2-0:1.4
//
// A serial that two devices were seen to share is of no use from then on, so that
// the one that stays does not change its name again when the other is unplugged;
// IDs remembers it. The zero value knows of none. It is used from one goroutine.
type IDs struct {
	shared map[serial]bool
}

type serial struct {
	id   sysfs.ID
	text string
}

// maxSerial is what a USB string can hold (USB 2.0, 9.6.7), and what fits the name
// of a directory.
const maxSerial = 126

// Name returns the id of each of the devices, which are all that are plugged in
// now, in their order. No two are equal. An id has letters, digits and ".:@_-".
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
		if uses[names[i]] > 1 { // two buses of one controller with the same revision
			names[i] += "-" + d.Name
		}
	}
	return names
}

// PlainSerial keeps what separates the parts of an id and the ids of a list out of a
// serial number. A pattern for serial may be written for it, too.
func PlainSerial(s string) string { return sysfs.Plain(s, "._-") }

// Directory is the id as the name of a directory: without a colon, which many
// programs take for the end of a path. Of two ids of IDs, no two have the same.
func Directory(id string) string { return strings.ReplaceAll(id, ":", "-") }
