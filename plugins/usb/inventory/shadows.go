// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"

	"github.com/outrider-dev/outrider/plugins/usb/config"
	"github.com/outrider-dev/outrider/plugins/usb/match"
	"github.com/outrider-dev/outrider/plugins/usb/shadow"
	"github.com/outrider-dev/outrider/plugins/usb/simulation"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
	"github.com/outrider-dev/outrider/plugins/usb/uevent"
)

// shadow makes the nodes of devices that are plugged in, and removes those of others. It
// returns the devices that have not gone since they were listed.
func (v *inventory) shadow(published []*usbDevice, devices []sysfs.Device) (there []*usbDevice) {
	wanted := map[string]bool{}
	for _, s := range published {
		wanted[match.Directory(s.id)] = true
	}
	if !v.cleared {
		if err := v.shadows.Clear(wanted); err != nil {
			v.warn("failed to remove what a former run left: " + err.Error())
		}
		v.cleared = true
	}
	v.forget(wanted, devices)
	before := v.dropped
	v.dropped = map[string]bool{}
	for _, s := range published {
		if v.shadowDevice(s) {
			there = append(there, s)
		}
		if v.dropped[s.id] && before[s.id] {
			v.warn(fmt.Sprintf("device %s at port %s is not published: the kernel still lists it, but has told of its removal",
				s.id, s.Name))
		}
	}
	return there
}

// shadowDevice makes the nodes of one device. It is false if the device has gone since it
// was listed, or if another one is in its place. Then no nodes remain.
func (v *inventory) shadowDevice(s *usbDevice) bool {
	dir := match.Directory(s.id)
	err := v.shadows.Make(v.shadowOf(s, dir))
	v.dropped[s.id] = errors.Is(err, shadow.ErrWithdrawn)
	if v.dropped[s.id] || !s.pluggedInStill(v.tree) {
		if err := v.shadows.Empty(dir); err != nil {
			v.warn("failed to remove nodes of what was unplugged: " + err.Error())
		}
		return false
	}
	if err == nil {
		s.dir = dir
		v.retained[dir] = s
		return true
	}
	if err := v.shadows.Empty(dir); err != nil { // of what was made before the failure, and before this scan
		v.warn("failed to remove nodes of a device that is not given: " + err.Error())
	}
	switch {
	case errors.Is(err, shadow.ErrRefused):
		if !v.refused {
			v.refused = true
			v.logger.Warn("no device nodes can be made for tasks: they get the kernel's own, with its owner and permissions, "+
				"and not for longer than until the next re-plug", "error", err)
		}
	case s.problem == "":
		s.problem = "its device nodes can't be made: " + err.Error()
	}
	return true
}

// forget removes the nodes of devices that are not plugged in, at once: the kernel gives
// their numbers and names to the next device, of any bus.
func (v *inventory) forget(wanted map[string]bool, devices []sysfs.Device) {
	for dir, k := range v.retained {
		// the same plug may be there under another id, since its twin was plugged in: tasks
		// have it under the old one
		if wanted[dir] || slices.ContainsFunc(devices, func(d sysfs.Device) bool { return plugOf(d) == plugOf(k.Device) }) {
			continue
		}
		if err := v.shadows.Empty(dir); err != nil {
			v.warn("failed to remove nodes of what was unplugged: " + err.Error())
		}
		delete(v.retained, dir)
	}
}

// removed is called for each node that the kernel removes, also during a scan.
func (v *inventory) removed(n uevent.Number) {
	if err := v.shadows.Withdraw(n.Block, n.Major, n.Minor); err != nil {
		v.logger.Error("failed to remove nodes of what was unplugged", "error", err)
	}
}

// added is called for each node that the kernel adds.
func (v *inventory) added(n uevent.Number) { v.shadows.Admit(n.Block, n.Major, n.Minor) }

// missed is called when events may have been missed. It removes the nodes of devices that
// are no longer those of the last scan. It must not wait, since further events are not
// read meanwhile. The scan that follows also compares the serial numbers.
func (v *inventory) missed() {
	v.shadows.Doubt()
	tree, done, err := v.open()
	if err != nil {
		return // the scan reports it
	}
	defer done()
	for dir, s := range v.last.Load().retained {
		if s.hasItsNumbers(tree) {
			continue
		}
		if err := v.shadows.Empty(dir); err != nil {
			v.logger.Error("failed to remove nodes of what was unplugged", "error", err)
		}
	}
}

func (v *inventory) shadowOf(s *usbDevice, dir string) shadow.Device {
	d := shadow.Device{Name: dir}
	var held func(string) bool
	if v.Root != "/" {
		held = func(terminal string) bool { return simulation.Holds(v.Root, terminal) }
	}
	for _, n := range s.nodes {
		node := shadow.Node{
			Name: n.Name, Source: filepath.Join(v.Root, n.Path), Block: n.Block, Major: n.Major, Minor: n.Minor, Held: held,
			Mode: s.block.FileMode, UID: s.block.UID, GID: s.block.GID,
		}
		d.Nodes = append(d.Nodes, node)
		if n.Kind == sysfs.USB && s.forLibusb() {
			node.Name = fmt.Sprintf("%03d/%03d", s.Bus, s.Address)
			d.Bus = append(d.Bus, node)
		}
	}
	if len(d.Bus) > 0 {
		if target, err := fs.ReadLink(v.tree, path.Join("sys/bus/usb/devices", s.Name)); err == nil {
			d.Sys = []shadow.Link{{Name: s.Name, Target: target}}
		}
	}
	return d
}

// forLibusb reports whether the task gets a /dev/bus/usb.
func (s *usbDevice) forLibusb() bool {
	if s.block.Libusb != nil {
		return *s.block.Libusb
	}
	return !slices.ContainsFunc(s.nodes, func(n config.Node) bool { return n.Kind != sysfs.USB })
}
