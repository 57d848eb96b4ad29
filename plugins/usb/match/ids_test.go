// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// stick returns a stick with this serial number, or without one if serial is "".
func stick(port, serial string) sysfs.Device {
	return sysfs.Device{Name: "1-" + port, Path: "pci-0000:00:14.0-usbv2-0:" + port, ID: sysfs.ID{Vendor: 0x10c4,
		Product: 0xea60}, Serial: serial}
}

func TestIDs_UseSerialOrPort(t *testing.T) {
	other := stick("9", "A")
	other.ID.Product = 0xea61
	long := strings.Repeat("x", 127)
	for name, test := range map[string]struct {
		devices []sysfs.Device
		want    []string
	}{
		"a serial": {[]sysfs.Device{stick("1", "0001")}, []string{"10c4:ea60:0001"}},
		"two serials": {[]sysfs.Device{stick("1", "A"), stick("2", "B")}, []string{"10c4:ea60:A",
			"10c4:ea60:B"}},
		"no serials": {[]sysfs.Device{stick("1", ""), stick("1.2", "")},
			[]string{"10c4:ea60@pci-0000:00:14.0-usbv2-0:1", "10c4:ea60@pci-0000:00:14.0-usbv2-0:1.2"}},
		"equal serials": {[]sysfs.Device{stick("1", "A"), stick("2", "A"), stick("3", "B")},
			[]string{"10c4:ea60@pci-0000:00:14.0-usbv2-0:1", "10c4:ea60@pci-0000:00:14.0-usbv2-0:2", "10c4:ea60:B"}},
		"equal serials of two products": {[]sysfs.Device{stick("1", "A"), other}, []string{"10c4:ea60:A", "10c4:ea61:A"}},
		"serials that differ in separators": {[]sysfs.Device{stick("1", "a,b"), stick("2", "a b")},
			[]string{"10c4:ea60@pci-0000:00:14.0-usbv2-0:1", "10c4:ea60@pci-0000:00:14.0-usbv2-0:2"}},
		"a serial with any characters": {[]sysfs.Device{stick("1", "NaN:@#/☃")}, []string{"10c4:ea60:NaN_____"}},
		"a serial too long": {[]sysfs.Device{stick("1", long)},
			[]string{"10c4:ea60@pci-0000:00:14.0-usbv2-0:1"}},
		"one port for two devices": {[]sysfs.Device{stick("1", ""), {Name: "2-1", Path: "pci-0000:00:14.0-usbv2-0:1",
			ID: stick("", "").ID}}, []string{"10c4:ea60@pci-0000:00:14.0-usbv2-0:1-1-1",
			"10c4:ea60@pci-0000:00:14.0-usbv2-0:1-2-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := new(IDs).Name(test.devices); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestIDs_DoNotUseASerialThatWasOnceShared(t *testing.T) {
	var ids IDs
	name := func(devices ...sysfs.Device) string { return strings.Join(ids.Name(devices), " ") }
	const one, two = "10c4:ea60@pci-0000:00:14.0-usbv2-0:1", "10c4:ea60@pci-0000:00:14.0-usbv2-0:2"
	test.Eq(t, "10c4:ea60:A", name(stick("1", "A")), test.Sprint("alone"))
	test.Eq(t, one+" "+two, name(stick("1", "A"), stick("2", "A")), test.Sprint("with a twin"))
	for port, want := range map[string]string{"1": one, "2": two} {
		test.Eq(t, want, name(stick(port, "A")), test.Sprint("alone again"))
	}
	test.Eq(t, "10c4:ea60:B", name(stick("1", "B")), test.Sprint("another serial"))
	got := new(IDs).Name([]sysfs.Device{stick("1", "A")})
	test.Eq(t, "10c4:ea60:A", got[0], test.Sprintf("after a restart it is %s", got))
}

func TestIDs_DoNotDependOnBusAddresses(t *testing.T) {
	on := func(bus, address int, name, path string) sysfs.Device {
		return sysfs.Device{Name: name, Bus: bus, Address: address, Path: path, ID: sysfs.ID{Vendor: 0x10c4, Product: 0xea60}}
	}
	ids := func(devices ...sysfs.Device) []string { return new(IDs).Name(devices) }

	// the same address on two buses
	first := ids(on(1, 4, "1-1", "pci-0000:00:14.0-usbv2-0:1"), on(2, 4, "2-1", "pci-0000:00:14.0-usbv3-0:1"))
	test.NotEq(t, first[1], first[0], test.Sprint("the ids are equal"))
	// after a reboot: another address, another bus number
	again := ids(on(3, 9, "3-1", "pci-0000:00:14.0-usbv2-0:1"))
	if again[0] != first[0] {
		t.Errorf("%s has become %s", first[0], again[0])
	}
}

var plainID = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{4}[:@][A-Za-z0-9.:@_-]+$`)

func FuzzIDs_AndDirectoryNamesAreUnique(f *testing.F) {
	f.Add("0001", "0001", uint16(1), uint16(1), uint8(1), uint8(2))
	f.Add("a,b", "a b", uint16(1), uint16(1), uint8(1), uint8(2))
	f.Add("", "@pci-0000:00:14.0-usbv2-0:1", uint16(1), uint16(1), uint8(1), uint8(2))
	f.Add("1-2", "1:2", uint16(0x10c4), uint16(0xea60), uint8(12), uint8(120))
	f.Fuzz(func(t *testing.T, serialA, serialB string, vendorA, vendorB uint16, portA, portB uint8) {
		device := func(serial string, vendor uint16, port uint8) sysfs.Device {
			d := stick(fmt.Sprintf("%d.%d", 1+port%4, 1+port/4), serial)
			d.ID.Vendor = vendor
			return d
		}
		a, b := device(serialA, vendorA, portA), device(serialB, vendorB, portB)
		if a.Name == b.Name {
			return // a port has only one device
		}
		got := new(IDs).Name([]sysfs.Device{a, b})
		if got[0] == got[1] || Directory(got[0]) == Directory(got[1]) {
			t.Errorf("both are %q, in %q", got[0], Directory(got[0]))
		}
		for _, id := range got {
			if !plainID.MatchString(id) || strings.ContainsAny(Directory(id), ":/, ") || len(Directory(id)) > 200 {
				t.Errorf("id %q, directory %q", id, Directory(id))
			}
		}
		back := new(IDs).Name([]sysfs.Device{b, a})
		must.Eq(t, got[1], back[0], must.Sprintf("in the other order they are %q, not %q", back, got))
		test.Eq(t, got[0], back[1], test.Sprintf("in the other order they are %q, not %q", back, got))
	})
}
