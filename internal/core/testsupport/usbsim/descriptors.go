// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbsim

import "encoding/binary"

// descriptors returns the descriptors of the stick in binary, as in sysfs and usbfs: the
// device, its configuration, and for each function an interface with two endpoints (USB 2.0,
// 9.6). libusb reads them.
func (p *Plugged) descriptors() []byte {
	index := func(text string, n byte) byte { // a string's index, 0 for an empty string
		if text == "" {
			return 0
		}
		return n
	}
	le := binary.LittleEndian
	device := []byte{18, 1, 0x00, 0x02, 0, 0, 0, 64}
	vendor, product := p.ids()
	device = le.AppendUint16(device, vendor)
	device = le.AppendUint16(device, product)
	device = le.AppendUint16(device, 0x0100)
	device = append(device, index(p.Manufacturer, 1), index(p.Product, 2), index(p.Serial, 3), 1)

	var functions []byte
	for i, f := range p.Functions {
		class, transfer := byte(0xff), byte(2) // vendor-specific, bulk
		if f == "hidraw" {
			class, transfer = 3, 3 // HID, interrupt
		}
		functions = append(functions, 9, 4, byte(i), 0, 2, class, 0, 0, 0)
		if f == "hidraw" {
			functions = append(functions, 9, 0x21, 0x11, 0x01, 0, 1, 0x22, 34, 0) // HID 1.11, 6.2.1
		}
		endpoint := byte(i + 1)
		functions = append(functions,
			7, 5, 0x80|endpoint, transfer, 64, 0, 1,
			7, 5, endpoint, transfer, 64, 0, 1)
	}
	configuration := le.AppendUint16([]byte{9, 2}, uint16(9+len(functions)))
	configuration = append(configuration, byte(len(p.Functions)), 1, 0, 0x80, 50) // in units of 2 mA
	return append(append(device, configuration...), functions...)
}

// rootHubDescriptors are the descriptors of the kernel's root hubs (drivers/usb/core/hcd.c).
var rootHubDescriptors = []byte{
	18, 1, 0x00, 0x02, 9, 0, 1, 64, 0x6b, 0x1d, 0x02, 0x00, 0x01, 0x06, 0, 0, 0, 1,
	9, 2, 25, 0, 1, 1, 0, 0xe0, 0,
	9, 4, 0, 0, 1, 9, 0, 0, 0,
	7, 5, 0x81, 3, 4, 0, 12,
}
