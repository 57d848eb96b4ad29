// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package inventory has the plugin's device.Instance, which lists, reserves and measures a machine's USB devices.
package inventory

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/internal/core/device"

	"github.com/outrider-dev/outrider/plugins/usb/config"
	"github.com/outrider-dev/outrider/plugins/usb/libusb"
	"github.com/outrider-dev/outrider/plugins/usb/match"
	"github.com/outrider-dev/outrider/plugins/usb/shadow"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
	"github.com/outrider-dev/outrider/plugins/usb/uevent"
	"github.com/outrider-dev/outrider/plugins/usb/usbids"
)

// settle is how long a scan waits after an event, so drivers can make the nodes. Most need less than half of this time.
const settle = 300 * time.Millisecond

// inventory lists the devices of a machine. Only the goroutine that calls List may use the fields from ids to plugs,
// except shadows. Reserve and Stats use the result of the last scan, in last.
type inventory struct {
	*config.Plan
	logger hclog.Logger
	open   func() (tree fs.FS, done func(), err error) // opens the root directory, see config.OpenTree

	ids      match.IDs
	names    usbids.Names
	libusb   func() (map[libusb.Device][]sysfs.Class, error) // nil after libusb has failed
	shadows  *shadow.Dir
	tree     fs.FS                 // of the current scan
	warned   map[string]bool       // key: text of a warning that was logged
	cleared  bool                  // the nodes of previous runs have been removed
	dropped  map[string]bool       // key: id; true: unplugged during the last scan, which omitted it
	refused  bool                  // the warning about missing rights was logged
	retained map[string]*usbDevice // key: name of a shadow directory; the last device whose nodes are there
	plugs    map[string]plugs      // key: id

	last     atomic.Pointer[state]
	reserved sync.Map // keys: ids that were reserved since the plugin started

	idle      time.Duration // time between measurements of apparently unused devices
	measuring sync.Mutex    // guards measured
	measured  map[plug]measurement
}

var (
	_ device.Instance      = (*inventory)(nil)
	_ device.EventSource   = (*inventory)(nil)
	_ device.StatsReporter = (*inventory)(nil)
	_ device.Tuned         = (*inventory)(nil)
)

// state is the result of a scan. It is immutable.
type state struct {
	byID map[string]*usbDevice // key: published id; with a count, a device has several

	// byOldID has devices by an id that they no longer have, because a twin with the same serial number was plugged in.
	// Tasks may still have reserved the device under that id.
	byOldID map[string]*usbDevice

	retained map[string]*usbDevice // a copy of inventory.retained
}

// usbDevice is a published device.
type usbDevice struct {
	sysfs.Device
	id      string   // the id without the number of a share
	as      sysfs.ID // vendor and product as published
	block   *config.Parsed
	nodes   []config.Node
	problem string
	dir     string // name of the directory of its shadow nodes, empty without shadow nodes
	replugs int
	newID   string // set only in a copy under a previous id: the id that the device has now
}

// plug identifies one connection of a device to a port. It has more fields than the address, because after a reset of
// the controller the kernel immediately reuses addresses.
type plug struct {
	bus, address int
	path         string
	id           sysfs.ID
	serial       string
}

func plugOf(d sysfs.Device) plug { return plug{d.Bus, d.Address, d.Path, d.ID, d.Serial} }

// plugs has the last connection of a device, and counts its re-plugs.
type plugs struct {
	last  plug
	again int
}

// New makes the plugin's instance from a valid configuration.
func New(c config.Config, logger hclog.Logger) (device.Instance, error) {
	p, err := config.NewPlan(c)
	if err != nil {
		return nil, err
	}
	v := &inventory{
		Plan: p, logger: logger, shadows: shadow.New(p.ShadowDir), idle: idle, libusb: libusb.Classes, names: usbids.Names{},
		warned: map[string]bool{}, retained: map[string]*usbDevice{}, plugs: map[string]plugs{},
	}
	v.open = func() (fs.FS, func(), error) { return config.OpenTree(p.Root) }
	v.last.Store(&state{})
	return v, nil
}

func (v *inventory) Options() device.Options {
	return device.Options{Period: v.Rescan.Duration(), Settle: settle, Grace: v.Grace.Duration(),
		MountsInEnvironment: !v.MountsForAll}
}

func (v *inventory) Events(ctx context.Context, kick func()) error {
	return uevent.Listen(ctx, uevent.Handler{Removed: v.removed, Added: v.added, Missed: v.missed, Kick: kick})
}

// List implements device.Instance.
func (v *inventory) List(ctx context.Context) ([]device.Group, error) {
	if !v.Enabled {
		return nil, nil
	}
	if len(v.Blocks) == 0 {
		v.warn("no device is published: add device blocks, or match_all = true, to the configuration (\"nomad-device-usb " +
			"list\" prints a block for each device)")
	}
	if v.Root != "/" {
		v.warn("root is " + v.Root + ": the published devices are a simulation, and not this machine's devices")
	}
	tree, done, err := v.open()
	if err != nil {
		return nil, err
	}
	defer done()
	v.tree = tree
	v.shadows.Begin()
	devices, err := v.Plugged(tree)
	if err != nil {
		return nil, err
	}
	v.join(devices)
	var published []*usbDevice
	for _, a := range v.Rules.Assign(devices, &v.ids) {
		if len(a.Also) > 0 {
			v.warn(fmt.Sprintf("device %s matches blocks %q and %q, and belongs to the first: change one of them",
				a.ID, a.Type, a.Also[0]))
		}
		if a.Published() {
			published = append(published, v.newDevice(a))
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	published = v.shadow(published, devices)
	v.countPlugs(published)

	s := &state{byID: map[string]*usbDevice{}, byOldID: map[string]*usbDevice{}, retained: maps.Clone(v.retained)}
	for _, d := range published {
		for _, id := range d.ids() {
			s.byID[id] = d
		}
	}
	groups := v.groups(published)
	for _, old := range v.renamed(published) {
		problem := "its id is now " + old.newID + ", because another device has the same serial number"
		for i, id := range old.ids() {
			s.byOldID[id] = old
			groups = append(groups, device.Group{
				Vendor: fmt.Sprintf("%04x", old.as.Vendor), Type: old.block.Kind, Name: old.product(i),
				Devices: []device.Device{{ID: id, Problem: problem, PCIBusID: old.PCIBusID}},
			})
		}
	}
	v.last.Store(s)
	return groups, nil
}

// renamed returns a copy of each device whose id has changed because a twin was plugged in. The copy has the old id.
func (v *inventory) renamed(published []*usbDevice) (all []*usbDevice) {
	for _, s := range published {
		for id, p := range v.plugs {
			taken := slices.ContainsFunc(published, func(other *usbDevice) bool { return other.id == id })
			if !taken && id != s.id && p.last == plugOf(s.Device) {
				old := *s
				old.id, old.newID = id, s.id
				all = append(all, &old)
			}
		}
	}
	return all
}

func (v *inventory) newDevice(a match.Assigned) *usbDevice {
	b := v.Blocks[a.Type]
	return &usbDevice{
		Device: a.Device, id: a.ID, as: a.As, block: b, nodes: b.Choose(a.Device), problem: b.Missing(a.Device),
	}
}

// ids returns the published ids of a device. With a count, these are one for each task that can have it.
func (s *usbDevice) ids() []string {
	if s.block.Count == 1 {
		return []string{s.id}
	}
	var all []string
	for i := range s.block.Count {
		all = append(all, fmt.Sprintf("%s#%d", s.id, i+1))
	}
	return all
}

// join sets the classes in all settings and configurations of devices to those from libusb. It keeps those from sysfs
// if libusb fails. In a simulation, libusb would list the real devices of the machine, so join uses it only if
// umockdev's preload library presents the same tree to libusb.
func (v *inventory) join(devices []sysfs.Device) {
	if v.libusb == nil || v.Root != "/" && os.Getenv("UMOCKDEV_DIR") != v.Root {
		return
	}
	classes, err := v.libusb()
	if err != nil {
		v.libusb = nil
		v.warn("failed to list devices with libusb, falling back to sysfs: " + err.Error())
	}
	for i, d := range devices {
		if c, listed := classes[libusb.Device{Bus: d.Bus, Address: d.Address, ID: d.ID}]; listed {
			devices[i].Settings = c
		}
	}
}

// countPlugs counts how often each device was plugged in again since the process started.
func (v *inventory) countPlugs(published []*usbDevice) {
	for _, s := range published {
		p, known := v.plugs[s.id]
		now := plugOf(s.Device)
		changed := s.ID != p.last.id && s.ID != s.as // with known_as, the id may change without a re-plug
		if known && !changed && p.last != now {
			p.again++
			if v.isReserved(s) {
				v.logger.Warn("a device was plugged in again: restart its tasks of exec, java and docker, because "+
					"their copies of its nodes may now lead to another device",
					"device", s.id, "port", s.Name)
			}
		}
		p.last, s.replugs = now, p.again
		v.plugs[s.id] = p
	}
}

// isReserved reports whether any share of the device was reserved since the plugin started.
func (v *inventory) isReserved(s *usbDevice) bool {
	return slices.ContainsFunc(s.ids(), func(id string) bool { _, reserved := v.reserved.Load(id); return reserved })
}

// warn logs each message once.
func (v *inventory) warn(sentence string) {
	if !v.warned[sentence] {
		v.warned[sentence] = true
		v.logger.Warn(sentence)
	}
}
