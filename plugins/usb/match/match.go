// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package match decides which device belongs to which block of the
// configuration, and under which id it is published.
package match

import (
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// Match says which devices are meant: those for which every option that is set
// has a pattern that fits. In patterns * stands for any characters and ? for one.
type Match struct {
	ID     schema.Strings `codec:"id" doc:"Vendor and product as lsusb writes them: \"10c4:ea60\", \"10c4:*\"."`
	Serial schema.Strings `codec:"serial" doc:"Serial number."`
	Class  schema.Strings `codec:"class" doc:"Class of the device or of one of its interfaces, by name (\"hid\", \"cdc\", \"vendor-specific\") or in hex, with subclass and protocol if wanted: \"03\", \"03/01/02\"."`
	Port   schema.Strings `codec:"port" doc:"Where it is plugged in: the kernel's name (\"1-1.4\") or the path that does not depend on the order of buses (\"pci-0000:00:14.0-usbv2-0:1.4\", or udev's ID_PATH)."`
	Driver schema.Strings `codec:"driver" doc:"The kernel driver of one of its interfaces: \"cp210x\"."`

	Udev map[string]string `codec:"udev" doc:"Properties that udev has given to the device or to one of its nodes (\"udevadm info\" shows them), all of which must fit: ID_MODEL = \"CP2102*\". Not known where the agent has no /run/udev."`
}

// Allows says whether a device with this id can be meant, as far as id says.
func (m Match) Allows(id sysfs.ID) bool {
	p, err := compile(m)
	return err == nil && (p.ids == nil || anyGlob(p.ids, id.String()))
}

// Validate is nil, or says in one sentence what is wrong with the first pattern
// that can fit nothing. One that sets no option is an error too: it would fit
// everything.
func (m Match) Validate() error {
	_, err := compile(m)
	return err
}
