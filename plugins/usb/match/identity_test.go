// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// These tests cover mistakes of Nomad's example of a USB plugin.

func TestIDs_AreNoBusAddresses(t *testing.T) {
	on := func(bus, address int, name, path string) sysfs.Device {
		return sysfs.Device{Name: name, Bus: bus, Address: address, Path: path, ID: sysfs.ID{Vendor: 0x10c4, Product: 0xea60}}
	}
	ids := func(devices ...sysfs.Device) []string { return new(IDs).Name(devices) }

	// the same address on two buses
	first := ids(on(1, 4, "1-1", "pci-0000:00:14.0-usbv2-0:1"), on(2, 4, "2-1", "pci-0000:00:14.0-usbv3-0:1"))
	test.NotEq(t, first[1], first[0], test.Sprint("both are"))
	// plugged again after a restart: another address, another number of the bus
	again := ids(on(3, 9, "3-1", "pci-0000:00:14.0-usbv2-0:1"))
	if again[0] != first[0] {
		t.Errorf("%s has become %s", first[0], again[0])
	}
}

func TestMatch_EmptyIsRefused(t *testing.T) {
	test.Error(t, (Match{}).Validate(), test.Sprint("a block that says of no device that it is meant is taken"))
	test.Error(t, (Match{ID: schema.Strings{"4292"}}).Validate(), test.Sprint("an id in decimal is taken"))
	// several pairs, each of vendor and product
	m := Match{ID: schema.Strings{"10c4:ea60", "1a86:7523"}}
	p, err := compile(m)
	must.NoError(t, err, must.Sprint("pairs of vendor and product don't fit as pairs"))
	must.True(t, p.fits(sysfs.Device{ID: sysfs.ID{Vendor: 0x1a86, Product: 0x7523}}),
		must.Sprint("pairs of vendor and product don't fit as pairs"))
	test.False(t, p.fits(sysfs.Device{ID: sysfs.ID{Vendor: 0x1a86, Product: 0xea60}}),
		test.Sprint("pairs of vendor and product don't fit as pairs"))
}
