// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"fmt"
	"strings"
)

// classes has the names of classes from https://www.usb.org/defined-class-codes. gousb uses the same names, but does
// not have all of them.
var classes = map[uint8]string{
	0x00: "per-interface",
	0x01: "audio",
	0x02: "communications",
	0x03: "human interface device",
	0x05: "physical",
	0x06: "image",
	0x07: "printer",
	0x08: "mass storage",
	0x09: "hub",
	0x0a: "data",
	0x0b: "smart card",
	0x0d: "content security",
	0x0e: "video",
	0x0f: "personal healthcare",
	0x10: "audio/video",
	0x11: "billboard",
	0x12: "USB type-C bridge",
	0x13: "bulk display",
	0x14: "MCTP",
	0x3c: "I3C",
	0xdc: "diagnostic device",
	0xe0: "wireless",
	0xef: "miscellaneous",
	0xfe: "application-specific",
	0xff: "vendor-specific",
}

// shortNames are common abbreviations.
var shortNames = map[uint8]string{0x02: "cdc", 0x03: "hid", 0x0a: "cdc-data"}

// Name returns the name of the class, without subclass and protocol, such as "human interface device". For
// a class without a name, it returns a text such as "class 4b".
func (c Class) Name() string {
	if name, ok := classes[c.Class]; ok {
		return name
	}
	return fmt.Sprintf("class %02x", c.Class)
}

// ClassNames returns the names that a configuration may use, such as "hid" and "mass-storage", with their codes.
func ClassNames() map[string]uint8 {
	names := make(map[string]uint8, len(classes)+len(shortNames))
	for code, name := range classes {
		names[strings.ToLower(strings.NewReplacer(" ", "-", "/", "-").Replace(name))] = code
	}
	for code, name := range shortNames {
		names[name] = code
	}
	return names
}
