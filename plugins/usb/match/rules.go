// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"fmt"
	"maps"
	"slices"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// AnyType is the type of the devices that only match_all publishes.
const AnyType = "usb"

// Rules are the compiled blocks of a configuration. They do not change, and may be used by
// several goroutines.
type Rules struct {
	// KnownAs has the vendor and product of blocks whose devices change their own. The ids
	// of such devices contain neither a serial nor the revision of the bus, which a device
	// may change too.
	KnownAs map[string]sysfs.ID

	blocks, excludes []named
	all              bool
	byPort           map[string]bool // blocks whose devices are those in a port, whatever their serial
}

type named struct {
	name string
	patterns
}

// Compile compiles the blocks and the excludes, which are given by name. With all, devices
// that no block matches are of AnyType.
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

	// Type is the name of its block, which is the first that matches it in the order of
	// names. It is AnyType if only match_all does, and empty if nothing does.
	Type string

	// Also are the further blocks that match it, in order. They do not get it, so this is
	// mostly a mistake.
	Also []string

	// Excluded is the first exclude that matches it, in the order of names. The device is
	// not published then. Type and Also are set as without the exclude.
	Excluded string
}

// Published reports whether a job can ask for it.
func (a Assigned) Published() bool { return a.Type != "" && a.Excluded == "" }

// Assign returns each device with its block, in the order of the devices. These are all
// devices that are plugged in now.
func (r *Rules) Assign(devices []sysfs.Device, ids *IDs) []Assigned {
	all := make([]Assigned, len(devices))
	published := slices.Clone(devices)
	for i, d := range devices {
		all[i] = Assigned{Device: d}
		matching := fitting(r.blocks, d)
		switch {
		case len(matching) > 0:
			all[i].Type, all[i].Also = matching[0], matching[1:]
		case r.all:
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
