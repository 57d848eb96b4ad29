// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build cgo

package libusb

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/gousb"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// Available says whether this binary has libusb.
const Available = true

// Scan lists what is plugged in, hubs too, by bus and address. A context of libusb
// is made for it and closed after it: one that is kept does not see what is plugged
// later where no udev runs. One that libusb can't describe, or that vanishes
// meanwhile, is left out. It takes some milliseconds, and up to 100 more, in which
// gousb's loop for events waits until it looks whether it is to end.
//
// After a panic within libusb's Go half, which leaves memory behind, it is not asked
// again.
func (l *Lister) Scan() (devices []Device, err error) {
	if l.broken != nil {
		return nil, l.broken
	}
	context, err := open()
	if err != nil {
		return nil, fmt.Errorf("failed to initialize libusb: %w", err)
	}
	defer func() {
		if r := recover(); r != nil {
			l.broken = fmt.Errorf("libusb is not asked any more: it failed to describe a device: %v", r)
			devices, err = nil, l.broken
		}
		if closing := context.Close(); closing != nil && err == nil {
			devices, err = nil, fmt.Errorf("failed to close libusb: %w", closing)
		}
	}()
	_, failed := context.OpenDevices(func(d *gousb.DeviceDesc) bool {
		devices = append(devices, describe(d))
		return false // don't open it
	})
	if failed != nil && len(devices) == 0 {
		return nil, fmt.Errorf("failed to list devices by libusb: %w", failed)
	}
	slices.SortFunc(devices, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Bus, b.Bus), cmp.Compare(a.Address, b.Address))
	})
	return devices, nil
}

// open makes a context; gousb panics where libusb can't be initialized.
func open() (context *gousb.Context, err error) {
	defer func() {
		if r := recover(); r != nil {
			var ok bool
			if err, ok = r.(error); !ok {
				err = errors.New(fmt.Sprint(r))
			}
		}
	}()
	return gousb.NewContext(), nil
}

func describe(d *gousb.DeviceDesc) Device {
	class := func(class, subclass gousb.Class, protocol gousb.Protocol) sysfs.Class {
		return sysfs.Class{Class: uint8(class), Subclass: uint8(subclass), Protocol: uint8(protocol)}
	}
	device := Device{
		Bus: d.Bus, Address: d.Address,
		ID:    sysfs.ID{Vendor: uint16(d.Vendor), Product: uint16(d.Product)},
		Class: class(d.Class, d.SubClass, d.Protocol),
	}
	for _, configuration := range d.Configs {
		for _, i := range configuration.Interfaces {
			for _, s := range i.AltSettings {
				device.Classes = append(device.Classes, class(s.Class, s.SubClass, s.Protocol))
			}
		}
	}
	device.Classes = sysfs.SortClasses(device.Classes)
	return device
}
