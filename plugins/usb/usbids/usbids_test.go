// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbids

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

const table = `#
#	List of USB ID's
#

0403  Future Technology Devices International, Ltd
	0000  H4SMK 7 Port Hub / Bricked Counterfeit FT232 Serial (UART) IC
	6001  FT232 Serial (UART) IC
# a comment in between
		01  an interface
	6010  FT2232C/D/H Dual UART/FIFO IC
0457  Silicon Integrated Systems Corp./Z` + "\xff" + `
	0150  Super Talent 1GB Flash Drive
0458  KYE Systems Corp. (Mouse Systems)
C 03  Human Interface Device
	01  Boot Interface Subclass
`

func TestNames_Lookup(t *testing.T) {
	root := fstest.MapFS{"usr/share/misc/usb.ids": {Data: []byte(table)}}
	n := New(root)
	for range 2 {
		for id, want := range map[sysfs.ID]string{
			{Vendor: 0x0403, Product: 0x6001}: "Future Technology Devices International, Ltd|FT232 Serial (UART) IC",
			{Vendor: 0x0403, Product: 0x6010}: "Future Technology Devices International, Ltd|FT2232C/D/H Dual UART/FIFO IC",
			{Vendor: 0x0403, Product: 0x0150}: "Future Technology Devices International, Ltd|", // another vendor's
			{Vendor: 0x0457, Product: 0x0150}: "Silicon Integrated Systems Corp./Z\uFFFD|Super Talent 1GB Flash Drive",
			{Vendor: 0x0458, Product: 0x0001}: "KYE Systems Corp. (Mouse Systems)|",
			{Vendor: 0x1a6e, Product: 0x089a}: "|",
		} {
			vendor, product := n.Lookup(id)
			test.Eq(t, want, vendor+"|"+product, test.Sprint(id))
		}
		delete(root, "usr/share/misc/usb.ids") // the second time it must know
	}
}

func TestNames_ReadFirstTable(t *testing.T) {
	id := sysfs.ID{Vendor: 0x10c4, Product: 0xea60}
	root := fstest.MapFS{}
	vendor, product := New(root).Lookup(id)
	must.Eq(t, "", vendor, must.Sprint("without a table it"))
	test.Eq(t, "", product, test.Sprint("without a table it"))
	for _, name := range []string{"var/lib/usbutils/usb.ids", "usr/share/misc/usb.ids", "usr/share/hwdata/usb.ids"} {
		root[name] = &fstest.MapFile{Data: []byte("10c4  " + name + "\n")}
		vendor, _ := New(root).Lookup(id)
		test.Eq(t, name, vendor, test.Sprintf("%q was read instead of", vendor))
	}
}

// Nomad's example of a USB plugin has a table of its own.
func TestNames_AreOfTheHost(t *testing.T) {
	n := New(fstest.MapFS{"usr/share/hwdata/usb.ids": {Data: []byte(table + strings.Repeat("x\n", 10) +
		"1a6e  Global Unichip Corp.\n\t089a  Coral\n")}})
	// one that came after 2017, and one that no table has: no "unknown(…)"
	vendor, product := n.Lookup(sysfs.ID{Vendor: 0x1a6e, Product: 0x089a})
	must.Eq(t, "Global Unichip Corp.", vendor)
	test.Eq(t, "Coral", product)
	vendor, product = n.Lookup(sysfs.ID{Vendor: 0xffff, Product: 0xffff})
	must.Eq(t, "", vendor)
	test.Eq(t, "", product)
	// what groups are named after has no slash and is not shared by two products
	if a, b := (sysfs.ID{Vendor: 0x0457, Product: 0x0150}), (sysfs.ID{Vendor: 0x0457,
		Product: 0x0151}); a.String() == b.String() || strings.Contains(a.String(), "/") {
		t.Errorf("%s and %s", a, b)
	}
}
