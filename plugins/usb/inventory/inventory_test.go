// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/usb/libusb"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

func TestInventory_PublishesDevicesUnderTheirBlocksName(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.wantPublished()
	m.plug("10c4:ea60", "0001", "1-1")
	m.plug("1a86:7523", "", "1-2") // no block matches it
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60:0001")
	m.wantNodes("10c4-ea60-0001/tty", "10c4-ea60-0001/usb")

	g := m.scan()[0]
	test.Eq(t, "0000:00:14.0", g.Devices[0].PCIBusID, test.Sprint("PCI address"))
	got := map[string]any{}
	for name, a := range g.Attributes {
		if s, ok := a.GetString(); ok {
			got[name] = s
		} else if i, ok := a.GetInt(); ok {
			got[name] = i
		} else {
			t.Errorf("attribute %s is neither text nor a whole number: %v", name, a)
		}
	}
	want := map[string]any{
		"usb_id": "10c4:ea60", "vendor_id": int64(0x10c4), "product_id": int64(0xea60),
		"class_id": int64(0), "sub_class_id": int64(0), "protocol_id": int64(0), "classification": "vendor-specific",
		"vendor": "Silicon Labs", "product": "CP2102", "description": "CP2102 (Silicon Labs)", "speed": int64(12),
		"driver": "cp210x",
		"serial": "0001", "serials": "0001", "port": "pci-0000:00:14.0-usbv2-0:1", "ports": "pci-0000:00:14.0-usbv2-0:1",
	}
	test.MapEqOp(t, want, got, test.Sprintf("attributes are\n%v\nwant", got))
}

func TestInventory_DistinguishesIdenticalDevicesByPort(t *testing.T) {
	m := newMachine(t, `
		device "left" {
			id   = "1a86:7523"
			port = "1-1"
		}
		device "right" {
			id   = "1a86:7523"
			port = "*-0:2"
		}`)
	want := []string{"1a86/left/7523 1a86:7523@pci-0000:00:14.0-usbv2-0:1",
		"1a86/right/7523 1a86:7523@pci-0000:00:14.0-usbv2-0:2"}
	left, right := m.plug("1a86:7523", "", "1-1"), m.plug("1a86:7523", "", "1-2")
	m.wantPublished(want...)
	m.must(left.Unplug())
	m.must(right.Unplug())
	m.wantPublished()
	m.start(`device "left" {
			id   = "1a86:7523"
			port = "1-1"
		}
		device "right" {
			id   = "1a86:7523"
			port = "*-0:2"
		}`) // as after a reboot
	m.plug("1a86:7523", "", "1-2")
	m.plug("1a86:7523", "", "1-1")
	m.wantPublished(want...)
}

func TestInventory_MatchAllPublishesRest(t *testing.T) {
	m := newMachine(t, `
		match_all = true
		device "zigbee" { id = "10c4:ea60" }
		exclude "keys" { id = "1050:*" }`)
	m.plug("10c4:ea60", "0001", "1-1")
	m.plug("1a86:7523", "", "1-2")
	m.plug("1050:0407", "7", "1-3", "hidraw")
	m.plug("0403:6001", "A1", "2-1")
	m.wantPublished("0403/usb/6001 0403:6001:A1", "10c4/zigbee/ea60 10c4:ea60:0001",
		"1a86/usb/7523 1a86:7523@pci-0000:00:14.0-usbv2-0:2")
	r := m.reserve("0403:6001:A1")
	host := m.nodes + "/0403-6001-A1/tty"
	if r.Envs["USB_VISIBLE_DEVICES"] != "0403:6001:A1" || r.Envs["USB_USB_TTY"] != host || r.Devices[1].TaskPath != host ||
		r.Devices[1].HostPath != host {
		t.Errorf("got %v, %+v", r.Envs, r.Devices[1])
	}
	_, set := m.reserve("10c4:ea60:0001").Envs["USB_VISIBLE_DEVICES"]
	test.False(t, set, test.Sprint("a device with a block is in USB_VISIBLE_DEVICES"))
}

func TestInventory_CountLetsTasksShareADevice(t *testing.T) {
	m := newMachine(t, `device "gps" {
		id    = "1546:01a8"
		count = 3
	}`)
	m.plug("1546:01a8", "", "1-1")
	id := "1546:01a8@pci-0000:00:14.0-usbv2-0:1"
	m.wantPublished("1546/gps/01a8 "+id+"#1", "1546/gps/01a8#2 "+id+"#2", "1546/gps/01a8#3 "+id+"#3")
	one, two := m.reserve(id+"#1"), m.reserve(id+"#3")
	must.Eq(t, two.Envs["USB_GPS_HOST_TTY"], one.Envs["USB_GPS_HOST_TTY"],
		must.Sprintf("got %v and %v", one.Envs, two.Envs))
	must.Eq(t, id+"#1", one.Envs["USB_GPS_ID"], must.Sprintf("got %v and %v", one.Envs, two.Envs))
	test.Eq(t, "/dev/gps/tty", two.Envs["USB_GPS_TTY"], test.Sprintf("got %v and %v", one.Envs, two.Envs))
	if strings.Count(strings.Join(m.entries(), " "), "1546") != 1 {
		t.Errorf("several directories exist: %v", m.entries())
	}
}

func TestInventory_ReportsMissingNode(t *testing.T) {
	m := newMachine(t, `device "key" {
		id    = "1050:0407"
		nodes = ["hidraw", "usb?", "tty?"]
	}`)
	p := m.plug("1050:0407", "7", "1-1", "hidraw")
	m.wantPublished("1050/key/0407 1050:0407:7")
	m.wantNodes("1050-0407-7/hidraw", "1050-0407-7/usb")
	m.must(p.Unplug())
	m.plug("1050:0407", "7", "1-1", "tty")
	m.wantPublished("1050/key/0407 1050:0407:7 (no hidraw: its driver cp210x has made no such node)")
}

func TestInventory_UnusableShadowDirMakesDevicesUnhealthy(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.must(os.Mkdir(m.nodes, 0o755))
	m.must(os.WriteFile(m.nodes+"/precious", nil, 0o600))
	m.plug("10c4:ea60", "0001", "1-1")
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60:0001 (its device nodes can't be made: " + m.nodes +
		" contains other files: use a directory that is empty or missing)")
}

func TestInventory_WarnsOnce(t *testing.T) {
	m := newMachine(t, ``)
	m.plug("10c4:ea60", "0001", "1-1")
	for range 3 {
		m.wantPublished()
	}
	n := strings.Count(m.log.String(), "no device is published: add device blocks")
	test.Eq(t, 1, n, test.Sprintf("logged %d times: %s", n, m.log))
	m.start(`
		device "b" { id = "10c4:*" }
		device "a" { id = "*:ea60" }`)
	for range 3 {
		m.wantPublished("10c4/a/ea60 10c4:ea60:0001")
	}
	n = strings.Count(m.log.String(), `device 10c4:ea60:0001 matches blocks "a" and "b", `+
		`and belongs to the first`)
	test.Eq(t, 1, n, test.Sprintf("logged %d times: %s", n, m.log))
}

func TestInventory_CallsLibusbOnlyUntilAnError(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	t.Setenv("UMOCKDEV_DIR", m.root)
	m.plug("10c4:ea60", "0001", "1-1")
	asked := 0
	m.libusb = func() (map[libusb.Device][]sysfs.Class, error) {
		asked++
		return nil, errors.New("no rights")
	}
	m.scan()
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60:0001")
	test.Eq(t, 1, asked)
	test.StrContains(t, m.log.String(), "failed to list devices with libusb, falling back to sysfs: no rights")
}

func TestInventory_DisabledPublishesNothing(t *testing.T) {
	m := newMachine(t, "enabled = false\n"+zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	test.SliceEmpty(t, m.scan())
	_, err := os.Stat(m.nodes)
	test.ErrorIs(t, err, os.ErrNotExist)
}

// For count = 2, Nomad takes any two devices of a group, so a group must not have two shares of a device.
func TestInventory_NoGroupHasDeviceTwice(t *testing.T) {
	m := newMachine(t, `device "gps" {
		id    = "1546:01a8"
		count = 2
	}`)
	m.plug("1546:01a8", "A", "1-1")
	m.plug("1546:01a8", "B", "1-2")
	m.wantPublished("1546/gps/01a8 1546:01a8:A#1 1546:01a8:B#1", "1546/gps/01a8#2 1546:01a8:A#2 1546:01a8:B#2")
	r := m.reserve("1546:01a8:A#2", "1546:01a8:B#2")
	test.NotEq(t, r.Envs["USB_GPS_2_HOST_TTY"], r.Envs["USB_GPS_HOST_TTY"], test.Sprintf("got %v", r.Envs))
	_, err := m.Reserve(t.Context(), []string{"1546:01a8:A#1", "1546:01a8:A#2"})
	test.EqError(t, err, `devices "1546:01a8:A#1" and "1546:01a8:A#2" are the same device: a task can have it only once`)
}

func TestInventory_MatchesUdevProperties(t *testing.T) {
	m := newMachine(t, `
		device "a" {
			id = "10c4:ea60"
			udev {
				ID_MODEL     = "CP210?_*"
				ID_FOR_TASKS = "1"
			}
		}
		exclude "seats" { udev { ID_SEAT = "*" } }`)
	for i := range 4 {
		m.plug("10c4:ea60", fmt.Sprint(i), fmt.Sprintf("1-%d", i+1))
	}
	m.wantPublished() // udev has no data about the devices yet
	m.must(os.MkdirAll(m.root+"/run/udev/data", 0o755))
	for name, text := range map[string]string{
		"c189:3": "I:123\nE:ID_MODEL=CP2102_USB\nE:ID_SERIAL=x\nG:systemd\n",
		"c188:0": "S:serial/by-id/x\nE:ID_FOR_TASKS=1\n",
		"c189:4": "E:ID_MODEL=CP2102_USB\nE:ID_FOR_TASKS=0\n", "c188:1": "E:ID_MODEL=tty\n",
		"c189:5": "E:ID_MODEL=CP2102_USB\nE:ID_FOR_TASKS=1\nE:ID_SEAT=seat0\n",
		"b188:3": "E:ID_MODEL=CP2102_USB\nE:ID_FOR_TASKS=1\n", // a disk with the device number of the fourth stick's tty
	} {
		m.must(os.WriteFile(m.root+"/run/udev/data/"+name, []byte(text), 0o644))
	}
	m.wantPublished("10c4/a/ea60 10c4:ea60:0")
}
