// Package libusb asks libusb which devices there are, and opens none.
package libusb

import (
	"errors"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// ErrUnavailable is the answer of a binary without libusb, or where libusb has
// failed in a way after which it can't be asked again.
var ErrUnavailable = errors.New("libusb is not available")

// Device is what libusb knows of one; bus and address tell which.
type Device struct {
	Bus, Address int
	ID           sysfs.ID
	Class        sysfs.Class   // of the device
	Classes      []sysfs.Class // of the interfaces, in any configuration and setting, sorted, each once
}

// Lister asks libusb. The zero value is ready, and is used from one goroutine.
type Lister struct {
	broken error
}
