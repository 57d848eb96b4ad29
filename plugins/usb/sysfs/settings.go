// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
)

// interfaceType is the type of an interface's descriptor, and interfaceLength its least
// length (USB 2.0, table 9-5).
const (
	interfaceType   = 4
	interfaceLength = 9
)

// settings reads the classes of the interfaces from the descriptors, which the kernel has in
// memory. An interface has a descriptor for each of its settings.
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

// SortClasses sorts them and keeps one of each.
func SortClasses(all []Class) []Class {
	slices.SortFunc(all, func(x, y Class) int {
		return cmp.Or(cmp.Compare(x.Class, y.Class), cmp.Compare(x.Subclass, y.Subclass), cmp.Compare(x.Protocol, y.Protocol))
	})
	return slices.Compact(all)
}
