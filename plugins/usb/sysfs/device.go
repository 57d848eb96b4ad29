// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package sysfs reads the USB devices of a machine from /sys, with the device nodes that their drivers made
// in /dev. It opens no device.
package sysfs

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Device is the state of a USB device at a scan. Two scans of an unchanged machine return equal values.
type Device struct {
	Name    string // the kernel's name: "1-1.4" is port 4 of the hub in port 1 of bus 1
	Bus     int
	Address int // changes at each re-plug

	// Path is the device's port in the form of udev's ID_PATH with the USB revision, such as
	// "pci-0000:00:14.0-usbv2-0:1.4". It does not depend on bus numbers, which may change at a reboot.
	Path string

	// PCIBusID is the PCI address of the device's controller ("0000:00:14.0"), or empty if the controller is not on PCI.
	PCIBusID string

	ID      ID
	Release uint16 // bcdDevice
	Class   Class  // of the device; zero if each interface has its own

	Manufacturer, Product, Serial string // the device's strings; a missing one is empty

	Speed    string // in Mbit/s, as the kernel writes it: "1.5", "480", "10000"
	MaxPower int    // in mA

	Interfaces []Interface // of the active configuration, by number
	// Settings are the classes of the interfaces in all settings of all configurations, sorted, without
	// duplicates.
	Settings []Class
	Udev     map[string][]string // properties of the device and its nodes, set by AddUdev
	Nodes    []Node              // sorted: the device's own first, then by kind, interface and name
}

// Drivers returns the names of the kernel drivers of the device's interfaces, sorted, without duplicates.
func (d Device) Drivers() (names []string) {
	for _, i := range d.Interfaces {
		if i.Driver != "" {
			names = append(names, i.Driver)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Classification returns the name of the device's class, or of its interfaces' classes if each interface has its own.
func (d Device) Classification() string {
	var names []string
	for _, i := range d.Interfaces {
		names = append(names, i.Class.Name())
	}
	if d.Class.Class != 0 || len(names) == 0 {
		return d.Class.Name()
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ",")
}

// ByDefault reports whether tasks get nodes of a kind if the configuration lists no kinds. They do not get a disk's
// nodes, or the usb node of a device with a disk, because these nodes bypass the disk's file systems.
func (d Device) ByDefault(k Kind) bool {
	return !slices.Contains(diskKinds, k) && (k != USB || !d.hasDisk())
}

// OnlyDisk reports whether the device has a disk, and no node that tasks get by default.
func (d Device) OnlyDisk() bool {
	return d.hasDisk() && !slices.ContainsFunc(d.Nodes, func(n Node) bool { return d.ByDefault(n.Kind) })
}

// hasDisk reports whether the device has a disk, even if no driver is bound to it yet.
func (d Device) hasDisk() bool {
	const massStorage = 0x08 // the code of a class
	return slices.ContainsFunc(d.Nodes, func(n Node) bool { return slices.Contains(diskKinds, n.Kind) }) ||
		slices.ContainsFunc(d.Interfaces, func(i Interface) bool { return i.Class.Class == massStorage }) ||
		slices.ContainsFunc(d.Settings, func(c Class) bool { return c.Class == massStorage })
}

// ID is a device's vendor and product.
type ID struct{ Vendor, Product uint16 }

// String returns the usual form, such as "10c4:ea60".
func (id ID) String() string { return fmt.Sprintf("%04x:%04x", id.Vendor, id.Product) }

var idForm = regexp.MustCompile(`^([0-9a-fA-F]{4}):([0-9a-fA-F]{4})$`)

// ParseID parses the usual form, such as "10c4:ea60".
func ParseID(s string) (ID, error) {
	parts := idForm.FindStringSubmatch(s)
	if parts == nil {
		return ID{}, fmt.Errorf("%q is not vendor and product as lsusb writes them: use for example \"10c4:ea60\"", s)
	}
	vendor, _ := strconv.ParseUint(parts[1], 16, 16)
	product, _ := strconv.ParseUint(parts[2], 16, 16)
	return ID{Vendor: uint16(vendor), Product: uint16(product)}, nil
}

// Class is the class, subclass and protocol of a device or an interface
// (https://www.usb.org/defined-class-codes).
type Class struct{ Class, Subclass, Protocol uint8 }

// String returns a form such as "03/01/02".
func (c Class) String() string { return fmt.Sprintf("%02x/%02x/%02x", c.Class, c.Subclass, c.Protocol) }

// Interface is one function of a device.
type Interface struct {
	Number int
	Class  Class
	Driver string // name of the kernel driver, empty if none is bound
}

// Kind is the purpose of a node.
type Kind string

// The kinds of nodes.
const (
	USB     Kind = "usb"     // the device itself, for libusb: /dev/bus/usb/001/004
	TTY     Kind = "tty"     // ttyUSB0, ttyACM0
	HIDRaw  Kind = "hidraw"  // hidraw0
	Input   Kind = "input"   // input/event3, input/mouse0, input/js0
	Video   Kind = "video"   // video0
	Media   Kind = "media"   // media0
	Sound   Kind = "sound"   // snd/controlC1, snd/pcmC1D0p, snd/midiC1D0
	Storage Kind = "storage" // sda, sda1, st0: the host's data
	SG      Kind = "sg"      // sg0: any SCSI command to the device
	BSG     Kind = "bsg"     // bsg/0:0:0:0: any SCSI command to the device
	Printer Kind = "printer" // usb/lp0
	Other   Kind = "other"   // any other
)

// diskKinds are the kinds of a disk's nodes.
var diskKinds = []Kind{Storage, SG, BSG}

// Node is a device node of a device or of one of its interfaces.
type Node struct {
	Kind      Kind
	Path      string // below the root, without a leading slash: "dev/ttyUSB0"
	Interface int    // number of the interface, or -1 for the device's own node
	Block     bool
	Major     uint32
	Minor     uint32
}
