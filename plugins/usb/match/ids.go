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
// IDs remembers each serial number that two devices had at the same time, and never uses it again. Otherwise, the id of
// one would change when the other is unplugged. The zero value is ready to use. Only one goroutine may use an IDs.
type IDs struct {
	shared map[serial]bool
}

type serial struct {
	id   sysfs.ID
	text string
}

// maxSerial is the maximum length of a USB string (USB 2.0, 9.6.7). An id with such a serial number is still a valid
// name of a directory.
const maxSerial = 126

// Name returns the ids of the devices, in the same order. The list must have all devices that are plugged in. The ids
// are unique, and consist of letters, digits and ".:@_-".
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
		if uses[names[i]] > 1 { // two buses of one controller have the same revision
			names[i] += "-" + d.Name
		}
	}
	return names
}

// PlainSerial returns a serial number as it is in ids: without characters that separate the parts of an id or the ids
// in a list. Patterns of the option serial match this form, too.
func PlainSerial(s string) string { return sysfs.Plain(s, "._-") }

// Directory returns the name of the directory for an id. It has no colons, which end a path for many programs.
// Different ids have different directories.
func Directory(id string) string { return strings.ReplaceAll(id, ":", "-") }
