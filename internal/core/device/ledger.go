// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// unplugged is the problem of a device that has vanished.
const unplugged = "unplugged"

// ledger remembers the devices from one scan to the next.
type ledger map[string]entry

type entry struct {
	scanned
	attributes attributes // the attributes of the device's group when the device was last seen
	gone       time.Time  // when the device vanished; zero once it is present and complete again
}

// enter adds a scan to the ledger. It returns the snapshot to publish, and the end of the next grace
// period, at which another scan is required. The end is zero if no grace period is running.
func (l ledger) enter(s scan, grace time.Duration, now time.Time) (*snapshot, time.Time) {
	for id, d := range s.devices {
		old := l[id]
		e := entry{scanned: d, attributes: s.attributes[d.group]}
		if d.Problem != "" && !old.gone.IsZero() && now.Before(old.gone.Add(grace)) {
			// the device is not completely plugged in yet, so keep it in the group that Nomad knows
			e.group, e.attributes, e.gone = old.group, old.attributes, old.gone
		}
		l[id] = e
	}
	var next time.Time
	for id, e := range l {
		if _, there := s.devices[id]; !there {
			if e.gone.IsZero() {
				e.gone = now
			}
			e.Problem = unplugged
			if !now.Before(e.gone.Add(grace)) {
				delete(l, id)
				continue
			}
			l[id] = e
		}
		if end := e.gone.Add(grace); !e.gone.IsZero() && (next.IsZero() || end.Before(next)) {
			next = end
		}
	}
	return l.snapshot(s.attributes), next
}

// snapshot returns everything in a fixed order, so snapshots can be compared.
func (l ledger) snapshot(current map[tuple]attributes) *snapshot {
	s := newSnapshot()
	s.scanned, s.devices = true, make(map[string]listed, len(l))
	groups := map[tuple]*device.DeviceGroup{}
	healthy := map[tuple][]string{}
	for _, id := range slices.Sorted(maps.Keys(l)) {
		e := l[id]
		s.devices[id] = listed{group: e.group, problem: e.Problem, gone: !e.gone.IsZero()}
		g := groups[e.group]
		if g == nil {
			about := current[e.group]
			if about == nil {
				about = e.attributes
			}
			g = &device.DeviceGroup{Vendor: e.group.vendor, Type: e.group.kind, Name: e.group.name,
				Attributes: maps.Clone(about)}
			groups[e.group] = g
			s.groups = append(s.groups, g)
		}
		d := &device.Device{ID: id, Healthy: e.Problem == "", HealthDesc: e.Problem}
		if e.PCIBusID != "" {
			d.HwLocality = &device.DeviceLocality{PciBusID: e.PCIBusID}
		}
		g.Devices = append(g.Devices, d)
		if d.Healthy {
			healthy[e.group] = append(healthy[e.group], id)
		}
	}
	for name, g := range groups {
		delete(g.Attributes, idsAttribute)
		if ids := healthy[name]; ids != nil {
			g.Attributes[idsAttribute] = structs.NewStringAttribute(strings.Join(ids, ","))
		}
	}
	slices.SortFunc(s.groups, func(a, b *device.DeviceGroup) int {
		return tuple{a.Vendor, a.Type, a.Name}.compare(tuple{b.Vendor, b.Type, b.Name})
	})
	return s
}

// idsAttribute distinguishes nodes with devices of the same kind. The scheduler would
// otherwise treat them as one class and check only one of them
// (nomad/structs/node_class.go). Only a group with a healthy device has this attribute.
const idsAttribute = "ids"
