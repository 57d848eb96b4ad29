// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// each returns the device, or the devices of the unit.
func (s *usbDevice) each() []*usbDevice {
	if len(s.members) > 0 {
		return s.members
	}
	return []*usbDevice{s}
}

// units replaces all devices of a block with together by one that stands for them. An
// incomplete unit is left out for the grace period, like a device that is plugged in
// again, and has a problem afterwards.
func (v *inventory) units(published []*usbDevice) []*usbDevice {
	members := map[*block][]*usbDevice{}
	var all []*usbDevice
	for _, s := range published {
		if s.block.Together <= 1 {
			all = append(all, s)
		} else {
			members[s.block] = append(members[s.block], s)
		}
	}
	now := time.Now()
	for _, kind := range slices.Sorted(maps.Keys(v.blocks)) {
		b := v.blocks[kind]
		published := members[b]
		switch since, wasWhole := v.partial[b.kind]; {
		case b.Together <= 1:
			continue
		case len(published) == b.Together:
			v.partial[b.kind] = time.Time{}
		case wasWhole && since.IsZero():
			v.partial[b.kind] = now
		}
		if len(published) == 0 {
			continue
		}
		slices.SortFunc(published, func(x, y *usbDevice) int { return cmp.Compare(x.id, y.id) })
		unit := *published[0]
		unit.id, unit.members, unit.problem = "unit:"+b.kind, published, ""
		if common(published, func(s *usbDevice) string { return s.as.String() }) == "" {
			unit.problem = "its devices are not of one product: match one id"
		}
		if len(published) != b.Together {
			there := joined(published, func(s *usbDevice) string { return s.id })
			unit.problem = fmt.Sprintf("%d of %d are plugged in: %s", len(published), b.Together, there)
			if v.partial[b.kind].Add(v.Grace.Duration()).After(now) {
				continue
			}
		}
		for _, s := range published {
			if unit.problem == "" && s.problem != "" {
				unit.problem = s.id + ": " + s.problem
			}
		}
		all = append(all, &unit)
	}
	return all
}
