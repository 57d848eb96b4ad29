// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// zigbee is a stick with a serial port.
var zigbee = sysfs.Device{
	Name: "1-1.4", Bus: 1, Address: 4, Path: "pci-0000:00:14.0-usbv2-0:1.4", ID: sysfs.ID{Vendor: 0x10c4, Product: 0xea60},
	Serial:     "Zürich 0001",
	Interfaces: []sysfs.Interface{{Class: sysfs.Class{Class: 0xff}, Driver: "cp210x"}},
}

// key is a security key: a composite device with a HID and a smart card.
var key = sysfs.Device{
	Name: "2-3", Bus: 2, Address: 4, Path: "pci-0000:00:14.0-usbv3-0:3", ID: sysfs.ID{Vendor: 0x1050, Product: 0x0407},
	Interfaces: []sysfs.Interface{{Class: sysfs.Class{Class: 3, Subclass: 1, Protocol: 1}, Driver: "usbhid"}, {Number: 1,
		Class: sysfs.Class{Class: 0x0b}}},
}

func TestMatch_SelectsDevices(t *testing.T) {
	for name, test := range map[string]struct {
		match       Match
		zigbee, key bool
	}{
		"an id":                          {Match{ID: schema.Strings{"10c4:ea60"}}, true, false},
		"an id in upper case":            {Match{ID: schema.Strings{"10C4:EA60"}}, true, false},
		"an id with 0x":                  {Match{ID: schema.Strings{"0x10c4:0xEA60"}}, true, false},
		"an id with 0x and fewer digits": {Match{ID: schema.Strings{"0x1050:0x407"}}, false, true},
		"any product of a vendor":        {Match{ID: schema.Strings{"10c4:*"}}, true, false},
		"an id with a question mark":     {Match{ID: schema.Strings{"10?4:ea6?"}}, true, false},
		"one of two ids":                 {Match{ID: schema.Strings{"1a86:7523", "1050:*"}}, false, true},
		"any id":                         {Match{ID: schema.Strings{"*:*"}}, true, true},
		"a serial":                       {Match{Serial: schema.Strings{"Zürich 0001"}}, true, false},
		"a serial as in the id":          {Match{Serial: schema.Strings{"Z_rich_0001"}}, true, false},
		"a part of the serial":           {Match{Serial: schema.Strings{"*0001"}}, true, false},
		"a serial in another case":       {Match{Serial: schema.Strings{"zürich*"}}, false, false},
		"any serial":                     {Match{Serial: schema.Strings{"?*"}}, true, false},
		"a class by name":                {Match{Class: schema.Strings{"HID"}}, false, true},
		"a class by its long name":       {Match{Class: schema.Strings{"human interface device"}}, false, true},
		"a class of any interface":       {Match{Class: schema.Strings{"smart-card"}}, false, true},
		"a class in hex":                 {Match{Class: schema.Strings{"0x03"}}, false, true},
		"a class in one digit":           {Match{Class: schema.Strings{"3"}}, false, true},
		"class and subclass":             {Match{Class: schema.Strings{"03/01"}}, false, true},
		"class, subclass, protocol":      {Match{Class: schema.Strings{"hid/01/02"}}, false, false},
		"class and protocol":             {Match{Class: schema.Strings{"hid/*/01"}}, false, true},
		"the device's class":             {Match{Class: schema.Strings{"per-interface"}}, true, true},
		"vendor-specific":                {Match{Class: schema.Strings{"vendor_specific"}}, true, false},
		"a port by the kernel's name":    {Match{Port: schema.Strings{"1-1.4"}}, true, false},
		"any port of a hub":              {Match{Port: schema.Strings{"1-1.*"}}, true, false},
		"a port by its path":             {Match{Port: schema.Strings{"pci-0000:00:14.0-usbv2-0:1.4"}}, true, false},
		"a port by udev's path":          {Match{Port: schema.Strings{"pci-0000:00:14.0-usb-0:1.4"}}, true, false},
		"any port of a controller":       {Match{Port: schema.Strings{"pci-0000:00:14.0-*"}}, true, true},
		"a bracket":                      {Match{Driver: schema.Strings{"c[p]210x"}}, false, false},
		"a dot and a part":               {Match{Driver: schema.Strings{"cp...x", "p210", "cp210"}}, false, false},
		"a letter of two bytes":          {Match{Serial: schema.Strings{"Z?rich 0001"}}, true, false},
		"a driver":                       {Match{Driver: schema.Strings{"cp210x", "ftdi_sio"}}, true, false},
		"any driver":                     {Match{Driver: schema.Strings{"*hid"}}, false, true},
		"all set options": {Match{ID: schema.Strings{"10c4:*"}, Serial: schema.Strings{"*1"},
			Class: schema.Strings{"ff"}, Port: schema.Strings{"1-*"}, Driver: schema.Strings{"cp*"}}, true, false},
		"all set options but one": {Match{ID: schema.Strings{"10c4:*"}, Driver: schema.Strings{"ch341"}}, false,
			false},
	} {
		t.Run(name, func(t *testing.T) {
			must.NoError(t, test.match.Validate())
			p, err := compile(test.match)
			if err != nil || p.fits(zigbee) != test.zigbee || p.fits(key) != test.key {
				t.Errorf("fits the stick: %t, the key: %t, error %v", p.fits(zigbee), p.fits(key), err)
			}
		})
	}
}

func TestMatch_RefusesPatternsThatMatchNothing(t *testing.T) {
	const notID = ` is not vendor and product as lsusb writes them, four hex digits each: use for example ` +
		`"10c4:ea60" or "10c4:*"`
	const notClass = ` is not known: write class, subclass and protocol in hex, such as "03/01/02" or "03", or the class ` +
		`as one of application-specific, audio, audio-video, billboard, bulk-display, cdc, cdc-data, communications, ` +
		`content-security, data, diagnostic-device, hid, hub, human-interface-device, i3c, image, mass-storage, mctp, ` +
		`miscellaneous, per-interface, personal-healthcare, physical, printer, smart-card, usb-type-c-bridge, ` +
		`vendor-specific, video, wireless`
	const notPort = ` is not a port: use for example "1-1.4" or "pci-0000:00:14.0-usbv2-0:1.4" ` +
		`("nomad-device-usb list" shows it)`
	for _, test := range []struct {
		match Match
		want  string
	}{
		{Match{}, `no option selects devices: set id, serial, class, port, driver or udev`},
		{Match{ID: schema.Strings{""}}, `id "" is empty and matches nothing: leave it out`},
		{Match{ID: schema.Strings{"10c4:*", "1624"}}, `id "1624"` + notID},
		{Match{ID: schema.Strings{"0x658"}}, `id "0x658"` + notID},
		{Match{ID: schema.Strings{"10c4ea60"}}, `id "10c4ea60"` + notID},
		{Match{ID: schema.Strings{"403:6001"}}, `id "403:6001"` + notID},
		{Match{ID: schema.Strings{"silabs:cp2102"}}, `id "silabs:cp2102"` + notID},
		{Match{ID: schema.Strings{"10c4:ea60:0001"}}, `id "10c4:ea60:0001"` + notID},
		{Match{ID: schema.Strings{"10c45:*"}}, `id "10c45:*"` + notID},
		{Match{Serial: schema.Strings{""}}, `serial "" is empty and matches nothing: leave it out`},
		{Match{Class: schema.Strings{"255"}}, `class "255"` + notClass},
		{Match{Class: schema.Strings{"03/x"}}, `class "03/x"` + notClass},
		{Match{Class: schema.Strings{"03/01/02/01"}}, `class "03/01/02/01" has more than class, subclass and protocol: ` +
			`use for example "03/01/02"`},
		{Match{Class: schema.Strings{"keyboard"}}, `class "keyboard"` + notClass},
		{Match{Port: schema.Strings{"/dev/ttyUSB0"}}, `port "/dev/ttyUSB0"` + notPort},
		{Match{Port: schema.Strings{"usb1-1.4"}}, `port "usb1-1.4"` + notPort},
		{Match{Port: schema.Strings{"1.4"}}, `port "1.4"` + notPort},
		{Match{Driver: schema.Strings{"/sys/bus/usb/drivers/cp210x"}}, `driver "/sys/bus/usb/drivers/cp210x" is a path: ` +
			`write the name alone, such as "cp210x"`},
	} {
		err := test.match.Validate()
		if err == nil || err.Error() != test.want {
			t.Errorf("got  %v\nwant %s", err, test.want)
		}
	}
}
