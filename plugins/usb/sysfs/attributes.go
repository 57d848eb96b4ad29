// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// attributes reads the files of one directory of sysfs. err is the first error of a mandatory attribute.
type attributes struct {
	root fs.FS
	dir  string
	err  error
}

// maxText limits the bytes of a device's string. A USB string has at most 126 UTF-16 units (USB 2.0, 9.6.7),
// which the kernel converts to at most 378 bytes.
const maxText = 512

// text returns an attribute, or "" if the device does not have it. A device may send any bytes, so text
// converts them to valid, printable UTF-8 of at most maxText bytes, which gRPC and terminals accept.
func (a *attributes) text(name string) string {
	b, _ := fs.ReadFile(a.root, path.Join(a.dir, name))
	text := strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(string(b), "\uFFFD")))
	if len(text) > maxText {
		text = strings.TrimSpace(strings.ToValidUTF8(text[:maxText], "")) // without a truncated character
	}
	return text
}

// number parses a mandatory attribute.
func (a *attributes) number(name string, base, bits int) uint64 {
	b, err := fs.ReadFile(a.root, path.Join(a.dir, name))
	if err == nil {
		var n uint64
		if n, err = strconv.ParseUint(strings.TrimSpace(string(b)), base, bits); err == nil {
			return n
		}
	}
	if a.err == nil {
		a.err = err
	}
	return 0
}

// optional parses an attribute, or returns 0 if it is missing or invalid.
func (a *attributes) optional(name string, base, bits int) uint64 {
	n, _ := strconv.ParseUint(a.text(name), base, bits)
	return n
}

func (a *attributes) class(prefix string) Class {
	return Class{
		Class:    uint8(a.optional(prefix+"Class", 16, 8)),
		Subclass: uint8(a.optional(prefix+"SubClass", 16, 8)),
		Protocol: uint8(a.optional(prefix+"Protocol", 16, 8)),
	}
}

// interfaceType is the type of an interface descriptor, and interfaceLength its minimum length (USB 2.0,
// table 9-5).
const (
	interfaceType   = 4
	interfaceLength = 9
)

// settings returns the classes of the interfaces in all settings of all configurations, from the descriptors that the
// kernel has cached. There is a descriptor for each setting.
func (a *attributes) settings() []Class {
	b, _ := fs.ReadFile(a.root, path.Join(a.dir, "descriptors"))
	var all []Class
	for len(b) >= 2 && b[0] >= 2 && int(b[0]) <= len(b) {
		if b[1] == interfaceType && b[0] >= interfaceLength {
			all = append(all, Class{b[5], b[6], b[7]})
		}
		b = b[b[0]:]
	}
	return SortClasses(all)
}

// SortClasses sorts classes and removes duplicates.
func SortClasses(all []Class) []Class {
	slices.SortFunc(all, func(x, y Class) int {
		return cmp.Or(cmp.Compare(x.Class, y.Class), cmp.Compare(x.Subclass, y.Subclass), cmp.Compare(x.Protocol, y.Protocol))
	})
	return slices.Compact(all)
}
