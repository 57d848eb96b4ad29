// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"fmt"
	"maps"
	"slices"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// AnyType is the type of devices that belong to no block, and are published because of match_all.
const AnyType = "usb"

// Rules are the compiled blocks of a configuration. They are immutable, and several goroutines may use them.
type Rules struct {
	// KnownAs has, by block, the vendor and product to publish for devices that change theirs. Such a device may also
	// change its serial number and the revision of its bus, so its id contains neither of these two.
	KnownAs map[string]sysfs.ID

	blocks, excludes []named
	all              bool
	byPort           map[string]bool // blocks with the option port and without serial
}

type named struct {
	name string
	patterns
}

// Compile compiles blocks and excludes. The keys are their names. If all is set, devices without a block get the type
// AnyType, except disks.
func Compile(blocks, exclude map[string]Match, all bool) (*Rules, error) {
	r := &Rules{all: all, byPort: map[string]bool{}}
	var err error
	if r.blocks, err = inOrder("device", blocks); err != nil {
		return nil, err
	}
	for _, b := range r.blocks {
		r.byPort[b.name] = blocks[b.name].Port != nil && blocks[b.name].Serial == nil
	}
	if r.excludes, err = inOrder("exclude", exclude); err != nil {
		return nil, err
	}
	return r, nil
}

func inOrder(what string, matches map[string]Match) ([]named, error) {
	var list []named
	for _, name := range slices.Sorted(maps.Keys(matches)) {
		p, err := compile(matches[name])
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", what, name, err)
		}
		list = append(list, named{name, p})
	}
	return list, nil
}

// Assigned is a device with the block that it belongs to.
type Assigned struct {
	Device sysfs.Device
	ID     string   // as published, see IDs
	As     sysfs.ID // vendor and product as published

	// Type is the name of the device's block: the first, by name, that matches. Without a matching block it is AnyType if
	// match_all applies, otherwise empty.
	Type string

	// Also has the names of the other blocks that match, sorted. They do not get the device, so the overlap is usually a
	// mistake.
	Also []string

	// Excluded is the name of the first exclude, by name, that matches. If it is set, the device is not published. Type
	// and Also do not depend on it.
	Excluded string
}

// Published reports whether jobs can request the device.
func (a Assigned) Published() bool { return a.Type != "" && a.Excluded == "" }

// Assign returns each device with its block, in the same order. The list must have all devices that are plugged in.
func (r *Rules) Assign(devices []sysfs.Device, ids *IDs) []Assigned {
	all := make([]Assigned, len(devices))
	published := slices.Clone(devices)
	for i, d := range devices {
		all[i] = Assigned{Device: d}
		matching := fitting(r.blocks, d)
		switch {
		case len(matching) > 0:
			all[i].Type, all[i].Also = matching[0], matching[1:]
		case r.all && !d.OnlyDisk():
			all[i].Type = AnyType
		}
		if excludes := fitting(r.excludes, d); len(excludes) > 0 {
			all[i].Excluded = excludes[0]
		}
		if r.byPort[all[i].Type] {
			published[i].Serial = ""
		}
		if as, ok := r.KnownAs[all[i].Type]; ok {
			published[i].ID, published[i].Serial, published[i].Path = as, "", busRevision.ReplaceAllString(d.Path, "-usb-")
		}
		all[i].As = published[i].ID
	}
	for i, id := range ids.Name(published) {
		all[i].ID = id
	}
	return all
}

func fitting(list []named, d sysfs.Device) []string {
	var names []string
	for _, n := range list {
		if n.fits(d) {
			names = append(names, n.name)
		}
	}
	return names
}
