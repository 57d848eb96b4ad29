// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build cgo

package libusb

import (
	"errors"
	"fmt"

	"github.com/google/gousb"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// Classes returns the classes of the interfaces of each device that is plugged in, including hubs. The classes are of
// all settings of all configurations, sorted, without duplicates. Devices that libusb can't describe are left out. A
// call takes some milliseconds, and up to 100 more until gousb's event loop ends. Do not call Classes again after an
// error, because a panic of gousb leaks memory.
//
// Each call makes a new libusb context: without udev, a context does not detect devices that are plugged in later.
func Classes() (classes map[Device][]sysfs.Class, err error) {
	var context *gousb.Context
	defer func() {
		// gousb panics if libusb can't be initialized, and for some invalid descriptors
		if r := recover(); r != nil {
			classes, err = nil, fmt.Errorf("libusb failed: %v", r)
		}
		if context != nil {
			err = errors.Join(err, context.Close())
		}
	}()
	context = gousb.NewContext()
	classes = map[Device][]sysfs.Class{}
	_, err = context.OpenDevices(func(d *gousb.DeviceDesc) bool {
		device := Device{d.Bus, d.Address, sysfs.ID{Vendor: uint16(d.Vendor), Product: uint16(d.Product)}}
		classes[device] = classesOf(d)
		return false // do not open it
	})
	if len(classes) > 0 {
		err = nil // the error concerns a single device
	}
	return classes, err
}

func classesOf(d *gousb.DeviceDesc) (all []sysfs.Class) {
	for _, configuration := range d.Configs {
		for _, i := range configuration.Interfaces {
			for _, s := range i.AltSettings {
				all = append(all, sysfs.Class{Class: uint8(s.Class), Subclass: uint8(s.SubClass), Protocol: uint8(s.Protocol)})
			}
		}
	}
	return sysfs.SortClasses(all)
}
