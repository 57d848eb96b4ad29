// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// devices is the kernel's directory with the devices and interfaces of all buses, as links into sys/devices.
const devices = "sys/bus/usb/devices"

// hub is the class code of hubs.
const hub = 0x09

// Scan lists the devices that are plugged in, except hubs, in the order of their buses and ports. root has
// sys and dev, such as os.DirFS("/"). Devices that are unplugged during the scan are left out. If the kernel
// has no USB support the list is empty.
func Scan(root fs.FS) ([]Device, error) {
	entries, err := fs.ReadDir(root, devices)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = fs.Stat(root, "sys"); err == nil {
			return nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("failed to list USB devices: %w", err)
	}
	var names []string
	for _, e := range entries {
		if ports(e.Name()) != nil {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return slices.Compare(ports(a), ports(b)) })

	var found []Device
	for _, name := range names {
		if d, ok := read(root, name); ok && d.Class.Class != hub {
			found = append(found, d)
		}
	}
	return found, nil
}

// ports returns the numbers in the name of a device, such as "1-1.4": the bus and the ports of the hubs. It
// returns nil for a root hub ("usb1") and an interface ("1-1:1.0").
func ports(name string) []int {
	bus, way, ok := strings.Cut(name, "-")
	if !ok {
		return nil
	}
	var numbers []int
	for _, part := range append([]string{bus}, strings.Split(way, ".")...) {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return nil
		}
		numbers = append(numbers, int(n))
	}
	return numbers
}

// read reads a device. It returns false if the device is unplugged or replaced during the read.
func read(root fs.FS, name string) (Device, bool) {
	dir, err := target(root, path.Join(devices, name))
	if err != nil {
		return Device{}, false
	}
	a := attributes{root: root, dir: dir}
	d := a.identity(name)
	d.Release = uint16(a.optional("bcdDevice", 16, 16))
	d.Class = a.class("bDevice")
	d.Serial = a.text("serial")
	d.Manufacturer = a.text("manufacturer")
	d.Product = a.text("product")
	d.Speed = a.text("speed")
	d.Interfaces = a.interfaces(name)
	d.Settings = a.settings()
	d.Nodes = nodes(root, dir)
	d.MaxPower, _ = strconv.Atoi(strings.TrimSuffix(a.text("bMaxPower"), "mA"))
	d.Path, d.PCIBusID = location(root, dir, name)
	same := int(a.number("devnum", 10, 16)) == d.Address // the number changes at each re-plug
	still, err := target(root, path.Join(devices, name))
	return d, a.err == nil && same && err == nil && still == dir
}

// Identify reads Name, Bus, Address and ID of a device again, to compare them with the result of Scan. It never blocks:
// the kernel takes no lock for these reads. It returns false if the device does not exist.
func Identify(root fs.FS, name string) (Device, bool) {
	a := attributes{root: root, dir: path.Join(devices, name)}
	d := a.identity(name)
	return d, a.err == nil
}

// Serial reads the serial number of a device again. The read needs the kernel's lock of the device, which
// may be held for seconds during a reset or by a slow driver.
func Serial(root fs.FS, name string) string {
	a := attributes{root: root, dir: path.Join(devices, name)}
	return a.text("serial")
}

func (a *attributes) identity(name string) Device {
	return Device{
		Name:    name,
		Bus:     int(a.number("busnum", 10, 16)),
		Address: int(a.number("devnum", 10, 16)),
		ID:      ID{Vendor: uint16(a.number("idVendor", 16, 16)), Product: uint16(a.number("idProduct", 16, 16))},
	}
}

// interfaces returns the interfaces of the active configuration. sysfs has no directories of other interfaces.
func (a *attributes) interfaces(name string) []Interface {
	entries, _ := fs.ReadDir(a.root, a.dir)
	var all []Interface
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), name+":") {
			continue
		}
		of := attributes{root: a.root, dir: path.Join(a.dir, e.Name())}
		i := Interface{Number: int(of.number("bInterfaceNumber", 16, 8)), Class: of.class("bInterface")}
		if driver, err := fs.ReadLink(a.root, path.Join(of.dir, "driver")); err == nil {
			i.Driver = path.Base(driver)
		}
		if of.err == nil {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(x, y Interface) int { return cmp.Compare(x.Number, y.Number) })
	return all
}

// target returns the path that a link leads to. The directories of the link's path must not be links.
func target(root fs.FS, name string) (string, error) {
	to, err := fs.ReadLink(root, name)
	if err != nil {
		return "", err
	}
	return path.Join(path.Dir(name), to), nil
}
