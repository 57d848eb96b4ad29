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

// shadow makes the nodes of published devices, and removes those of devices that are no longer plugged in. It returns
// the published devices that are still plugged in.
func (v *inventory) shadow(published []*usbDevice, devices []sysfs.Device) (there []*usbDevice) {
	wanted := map[string]bool{}
	for _, s := range published {
		wanted[match.Directory(s.id)] = true
	}
	if !v.cleared {
		if err := v.shadows.Clear(wanted); err != nil {
			v.warn("failed to remove nodes of a previous run: " + err.Error())
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
			v.warn(fmt.Sprintf("device %s at port %s is not published: the kernel still lists it, but reported its removal",
				s.id, s.Name))
		}
	}
	return there
}

// shadowDevice makes the nodes of one device. It returns false, and removes the nodes, if the device was
// unplugged since it was listed, or if another device is in its place.
func (v *inventory) shadowDevice(s *usbDevice) bool {
	dir := match.Directory(s.id)
	err := v.shadows.Make(v.shadowOf(s, dir))
	v.dropped[s.id] = errors.Is(err, shadow.ErrWithdrawn)
	if v.dropped[s.id] || !s.pluggedInStill(v.tree) {
		if err := v.shadows.Empty(dir); err != nil {
			v.warn("failed to remove nodes of an unplugged device: " + err.Error())
		}
		return false
	}
	if err == nil {
		s.dir = dir
		v.retained[dir] = s
		return true
	}
	if err := v.shadows.Empty(dir); err != nil { // removes nodes made before the failure, or by earlier scans
		v.warn("failed to remove nodes of an unusable device: " + err.Error())
	}
	switch {
	case errors.Is(err, shadow.ErrRefused):
		if !v.refused {
			v.refused = true
			v.logger.Warn("no device nodes can be made for tasks: tasks get the kernel's nodes, with the kernel's owner "+
				"and permissions, and only until the next re-plug", "error", err)
		}
	case s.problem == "":
		s.problem = "its device nodes can't be made: " + err.Error()
	}
	return true
}

// forget removes the nodes of devices that are not plugged in. This can't wait: the kernel gives the nodes' numbers and
// names to the next device, on any bus.
func (v *inventory) forget(wanted map[string]bool, devices []sysfs.Device) {
	for dir, k := range v.retained {
		// a device that is plugged in keeps the nodes of its old id, which a twin has changed: tasks still use them
		if wanted[dir] || slices.ContainsFunc(devices, func(d sysfs.Device) bool { return plugOf(d) == plugOf(k.Device) }) {
			continue
		}
		if err := v.shadows.Empty(dir); err != nil {
			v.warn("failed to remove nodes of an unplugged device: " + err.Error())
		}
		delete(v.retained, dir)
	}
}

// removed removes the shadow nodes with the number of a node that the kernel has removed. It may run during a scan.
func (v *inventory) removed(n uevent.Number) {
	if err := v.shadows.Withdraw(n.Block, n.Major, n.Minor); err != nil {
		v.logger.Error("failed to remove nodes of an unplugged device", "error", err)
	}
}

// added allows shadow nodes to have the number of a node that the kernel has added.
func (v *inventory) added(n uevent.Number) { v.shadows.Admit(n.Block, n.Major, n.Minor) }

// missed removes the nodes of devices that differ from the last scan. It is called when events may have been missed,
// and must not block, because further events wait for it. Therefore only the scan that follows compares serial numbers.
func (v *inventory) missed() {
	v.shadows.Doubt()
	tree, done, err := v.open()
	if err != nil {
		return // the next scan reports the error
	}
	defer done()
	for dir, s := range v.last.Load().retained {
		if s.hasItsNumbers(tree) {
			continue
		}
		if err := v.shadows.Empty(dir); err != nil {
			v.logger.Error("failed to remove nodes of an unplugged device", "error", err)
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

// forLibusb reports whether tasks get /dev/bus/usb: as configured, or by default if they get only usb nodes.
func (s *usbDevice) forLibusb() bool {
	if s.block.Libusb != nil {
		return *s.block.Libusb
	}
	return !slices.ContainsFunc(s.nodes, func(n config.Node) bool { return n.Kind != sysfs.USB })
}
