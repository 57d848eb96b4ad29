// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package libusb reads the descriptors of USB devices with libusb, through gousb. It opens no device, because that
// would wake the device and take it from the process that uses it. In a binary without cgo it finds no devices.
package libusb

import "github.com/outrider-dev/outrider/plugins/usb/sysfs"

// Device identifies a device that is plugged in.
type Device struct {
	Bus, Address int
	ID           sysfs.ID
}
