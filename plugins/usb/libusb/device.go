// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package libusb asks libusb, through gousb, which devices there are. It opens
// none: what is needed is in the descriptors, which the kernel has in memory, while
// opening wakes a device and takes it from who uses it.
package libusb

import (
	"errors"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// ErrUnavailable is the answer of a binary without libusb.
var ErrUnavailable = errors.New("this binary was built without libusb")

// Device is what libusb knows of one; bus and address tell which.
type Device struct {
	Bus, Address int
	ID           sysfs.ID
	Class        sysfs.Class   // of the device
	Classes      []sysfs.Class // of its interfaces in any setting of any configuration, sorted, each once
}

// Lister asks libusb. The zero value is ready, and is used from one goroutine.
type Lister struct {
	broken error // why it is not asked any more
}
