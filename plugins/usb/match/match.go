// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package match assigns USB devices to the blocks of the plugin's configuration, and names them by ids.
// An id does not change when the device is plugged in again or the host is restarted.
package match

import (
	"slices"

	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// Match selects the devices that fit all options that are set. A device fits an option if one of its patterns matches.
// In patterns, * matches any characters and ? matches one.
type Match struct {
	ID     schema.Strings `codec:"id" doc:"Vendor and product, as in lsusb: \"10c4:ea60\", \"10c4:*\"."`
	Serial schema.Strings `codec:"serial" doc:"Serial number."`
	Class  schema.Strings `codec:"class" doc:"Class of the device or an interface, by name (\"hid\", \"cdc\", \"vendor-specific\") or in hex: \"03\", \"03/01/02\"."`
	Port   schema.Strings `codec:"port" doc:"Port, by the kernel's name (\"1-1.4\") or by path (\"pci-0000:00:14.0-usbv2-0:1.4\", or udev's ID_PATH)."`
	Driver schema.Strings `codec:"driver" doc:"Kernel driver of an interface: \"cp210x\"."`

	Udev map[string]string `codec:"udev" doc:"udev properties of the device or a node, all of which must match: ID_MODEL = \"CP2102*\". Needs /run/udev."`
}

// Allows reports whether the option id admits this id: one of its patterns matches, or the option is not set.
func (m Match) Allows(id sysfs.ID) bool {
	p, err := compile(Match{ID: m.ID})
	return len(m.ID) == 0 || err == nil && p.fits(sysfs.Device{ID: id})
}

// Validate returns an error for the first pattern that can't match any device. A Match without options is
// also an error, because it would match every device.
func (m Match) Validate() error {
	_, err := compile(m)
	return err
}

// Misfit returns the only option that a device does not fit, and the device's values for that option. The option is
// empty if the device fits all options or misfits several, or if only one option is set. m must be valid.
func (m Match) Misfit(d sysfs.Device) (option string, values []string) {
	p, err := compile(m)
	misfits := p.misfits(d)
	if err != nil || len(misfits) != 1 || len(p) == 1 {
		return "", nil
	}
	return misfits[0].name, slices.Compact(misfits[0].values(d))
}
