// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbids

import (
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

func TestNames_FindVendorAndProduct(t *testing.T) {
	root := fstest.MapFS{"usr/share/misc/usb.ids": {Data: []byte(table)}}
	n := Names{}
	for range 2 {
		for id, want := range map[sysfs.ID]string{
			{Vendor: 0x0403, Product: 0x6001}: "Future Technology Devices International, Ltd|FT232 Serial (UART) IC",
			{Vendor: 0x0403, Product: 0x6010}: "Future Technology Devices International, Ltd|FT2232C/D/H Dual UART/FIFO IC",
			{Vendor: 0x0403, Product: 0x0150}: "Future Technology Devices International, Ltd|", // 0150 is another vendor's
			{Vendor: 0x0457, Product: 0x0150}: "Silicon Integrated Systems Corp./Z\uFFFD|Super Talent 1GB Flash Drive",
			{Vendor: 0x0458, Product: 0x0001}: "KYE Systems Corp. (Mouse Systems)|",
			{Vendor: 0x1a6e, Product: 0x089a}: "|",
		} {
			vendor, product := n.Lookup(root, id)
			test.Eq(t, want, vendor+"|"+product, test.Sprint(id))
		}
		delete(root, "usr/share/misc/usb.ids") // the second lookup must use the cache
	}
}

func TestNames_ReadTheFirstTableFound(t *testing.T) {
	id := sysfs.ID{Vendor: 0x10c4, Product: 0xea60}
	root := fstest.MapFS{}
	vendor, product := Names{}.Lookup(root, id)
	must.Eq(t, "", vendor, must.Sprint("without a table"))
	test.Eq(t, "", product, test.Sprint("without a table"))
	for _, name := range []string{"var/lib/usbutils/usb.ids", "usr/share/misc/usb.ids", "usr/share/hwdata/usb.ids"} {
		root[name] = &fstest.MapFile{Data: []byte("10c4  " + name + "\n")}
		vendor, _ := Names{}.Lookup(root, id)
		test.Eq(t, name, vendor, test.Sprintf("%q was read instead of", vendor))
	}
}
