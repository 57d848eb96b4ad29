// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

const pc = "sys/devices/pci0000:00/0000:00:14.0"

// hubAt returns a hub with four ports.
func hubAt(at, name string, bus, address string) string {
	return `
sys/bus/usb/devices:
  ` + name + ` -> ../../../` + strings.TrimPrefix(at, "sys/") + `
` + at + `:
  busnum ` + bus + `
  devnum ` + address + `
  idVendor 05e3
  idProduct 0608
  bDeviceClass 09
  bDeviceProtocol 01
  uevent MAJOR=189 MINOR=1 DEVNAME=bus/usb/001/002 DEVTYPE=usb_device
` + at + "/" + name + `:1.0:
  bInterfaceNumber 00
  bInterfaceClass 09
  uevent DEVTYPE=usb_interface DRIVER=hub
`
}

// husbzb1 has a serial port for each of its two radios.
const husbzb1 = `
sys/bus/usb/devices:
  1-2 -> ../../../devices/pci0000:00/0000:00:14.0/usb1/1-2
  1-2:1.0 -> ../../../devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0
  1-2:1.1 -> ../../../devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.1
sys/devices/pci0000:00/0000:00:14.0/usb1/1-2:
  subsystem -> ../../../../../bus/usb
  busnum 1
  devnum 9
  idVendor 10c4
  idProduct 8a2a
  bcdDevice 0100
  bDeviceClass 00
  bMaxPower 100mA
  speed 12
  manufacturer Silicon Labs
  product HubZ Smart Home Controller
  serial 612019B8
  uevent MAJOR=189 MINOR=8 DEVNAME=bus/usb/001/009 DEVTYPE=usb_device
sys/devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0:
  driver -> ../../../../../../bus/usb/drivers/cp210x
  bInterfaceNumber 00
  bInterfaceClass ff
  uevent DEVTYPE=usb_interface
sys/devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/ttyUSB0/tty/ttyUSB0:
  subsystem -> ../../../../../../../../../../class/tty
  uevent MAJOR=188 MINOR=0 DEVNAME=ttyUSB0
sys/devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.1:
  driver -> ../../../../../../bus/usb/drivers/cp210x
  bInterfaceNumber 01
  bInterfaceClass ff
  uevent DEVTYPE=usb_interface
sys/devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.1/ttyUSB1/tty/ttyUSB1:
  subsystem -> ../../../../../../../../../../class/tty
  uevent MAJOR=188 MINOR=1 DEVNAME=ttyUSB1
dev/serial/by-id:
  usb-Silicon_Labs_HubZ_Smart_Home_Controller_612019B8-if00-port0 -> ../../ttyUSB0
  usb-Silicon_Labs_HubZ_Smart_Home_Controller_612019B8-if01-port0 -> ../../ttyUSB1
`

// headset is a composite device with sound, keys, a HID, a camera and a disk.
const headset = `
sys/bus/usb/devices:
  2-3 -> ../../../devices/pci0000:00/0000:00:14.0/usb2/2-3
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3:
  subsystem -> ../../../../../bus/usb
  busnum 2
  devnum 3
  idVendor 046d
  idProduct 0a44
  bDeviceClass ef
  bDeviceSubClass 02
  bDeviceProtocol 01
  bMaxPower 896mA
  speed 5000
  uevent MAJOR=189 MINOR=130 DEVNAME=bus/usb/002/003 DEVTYPE=usb_device
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.0:
  bInterfaceNumber 00
  bInterfaceClass 01
  bInterfaceSubClass 01
  driver -> ../../../../../../bus/usb/drivers/snd-usb-audio
  uevent DEVTYPE=usb_interface
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.0/sound/card1:
  subsystem -> ../../../../../../../../../class/sound
  uevent
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.0/sound/card1/pcmC1D0p:
  subsystem -> ../../../../../../../../../../class/sound
  uevent MAJOR=116 MINOR=7 DEVNAME=snd/pcmC1D0p
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.0/sound/card1/controlC1:
  subsystem -> ../../../../../../../../../../class/sound
  uevent MAJOR=116 MINOR=8 DEVNAME=snd/controlC1
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.3:
  bInterfaceNumber 03
  bInterfaceClass 03
  driver -> ../../../../../../bus/usb/drivers/usbhid
  uevent DEVTYPE=usb_interface
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.3/0003:046D:0A44.0002/hidraw/hidraw1:
  subsystem -> ../../../../../../../../../../class/hidraw
  uevent MAJOR=245 MINOR=1 DEVNAME=hidraw1
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.3/0003:046D:0A44.0002/input/input9:
  subsystem -> ../../../../../../../../../../class/input
  uevent PRODUCT=3/46d/a44/111 NAME="Headset"
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.3/0003:046D:0A44.0002/input/input9/event10:
  subsystem -> ../../../../../../../../../../../class/input
  uevent MAJOR=13 MINOR=74 DEVNAME=input/event10
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.3/0003:046D:0A44.0002/input/input8/event9:
  subsystem -> ../../../../../../../../../../../class/input
  uevent MAJOR=13 MINOR=73 DEVNAME=input/event9
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.3/usbmisc/hiddev0:
  subsystem -> ../../../../../../../../../class/usbmisc
  uevent MAJOR=180 MINOR=96 DEVNAME=usb/hiddev0
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.4:
  bInterfaceNumber 04
  bInterfaceClass 0e
  uevent DEVTYPE=usb_interface
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.4/video4linux/video0:
  subsystem -> ../../../../../../../../../class/video4linux
  uevent MAJOR=81 MINOR=0 DEVNAME=video0
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.4/media0:
  subsystem -> ../../../../../../../../bus/media
  uevent MAJOR=242 MINOR=0 DEVNAME=media0
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.10:
  bInterfaceNumber 0a
  bInterfaceClass 08
  bInterfaceSubClass 06
  bInterfaceProtocol 50
  uevent DEVTYPE=usb_interface
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.10/host6/target6:0:0/6:0:0:0/block/sda:
  subsystem -> ../../../../../../../../../../../../class/block
  uevent MAJOR=8 MINOR=0 DEVNAME=sda DEVTYPE=disk
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.10/host6/target6:0:0/6:0:0:0/block/sda/sda1:
  subsystem -> ../../../../../../../../../../../../../class/block
  uevent MAJOR=8 MINOR=1 DEVNAME=sda1 DEVTYPE=partition
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.10/host6/target6:0:0/6:0:0:0/scsi_generic/sg0:
  subsystem -> ../../../../../../../../../../../../class/scsi_generic
  uevent MAJOR=21 MINOR=0 DEVNAME=sg0
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.10/host6/target6:0:0/6:0:0:0/bsg/6:0:0:0:
  subsystem -> ../../../../../../../../../../../../class/bsg
  uevent MAJOR=243 MINOR=0 DEVNAME=bsg/6:0:0:0
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.11:
  bInterfaceNumber 0b
  bInterfaceClass 07
  driver -> ../../../../../../bus/usb/drivers/usblp
  uevent DEVTYPE=usb_interface
sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.11/usbmisc/lp0:
  subsystem -> ../../../../../../../../../class/usbmisc
  uevent MAJOR=180 MINOR=0 DEVNAME=usb/lp0
dev/snd/by-id:
  usb-046d_0a44-00 -> ../controlC1
dev/input/by-id:
  usb-046d_0a44-event-if03 -> ../event9
  usb-046d_0a44-if03-event-kbd -> ../event9
dev/v4l/by-id:
  usb-046d_0a44-video-index0 -> ../../video0
dev/disk/by-id:
  usb-046d_0a44-0:0 -> ../../sda
`

func TestScan_ReadsKernelTree(t *testing.T) {
	for name, test := range map[string]struct {
		tree []string
		want string
	}{
		"no USB in the kernel": {[]string{"sys/class/tty:\n  x y"}, ""},
		"root hubs only":       {[]string{xhci}, ""},
		"a stick with a serial number": {
			[]string{xhci, cp2102(pc+"/usb1/1-1", 1, 4, "ttyUSB0", "0001")},
			`1-1 1/4 10c4:ea60 00/00/00 r0100 pci-0000:00:14.0-usbv2-0:1 [0000:00:14.0] "Silicon Labs" "CP2102 USB to UART Bridge Controller" "0001" 12Mbit/s 100mA
 if00 ff/00/00 cp210x
 usb of -1: dev/bus/usb/001/004 char 189:3
 tty of 0: dev/ttyUSB0 char 188:0
`},
		"sticks behind a hub, which is left out, and port 10 after port 2": {
			[]string{xhci, hubAt(pc+"/usb1/1-1", "1-1", "1", "2"),
				cp2102(pc+"/usb1/1-1/1-1.10", 1, 5, "ttyUSB0", ""), cp2102(pc+"/usb1/1-1/1-1.2", 1, 6, "ttyUSB1", "")},
			`1-1.2 1/6 10c4:ea60 00/00/00 r0100 pci-0000:00:14.0-usbv2-0:1.2 [0000:00:14.0] "Silicon Labs" "CP2102 USB to UART Bridge Controller" "" 12Mbit/s 100mA
 if00 ff/00/00 cp210x
 usb of -1: dev/bus/usb/001/006 char 189:5
 tty of 0: dev/ttyUSB1 char 188:1
1-1.10 1/5 10c4:ea60 00/00/00 r0100 pci-0000:00:14.0-usbv2-0:1.10 [0000:00:14.0] "Silicon Labs" "CP2102 USB to UART Bridge Controller" "" 12Mbit/s 100mA
 if00 ff/00/00 cp210x
 usb of -1: dev/bus/usb/001/005 char 189:4
 tty of 0: dev/ttyUSB0 char 188:0
`},
		"two serial ports on one stick": {
			[]string{xhci, husbzb1},
			`1-2 1/9 10c4:8a2a 00/00/00 r0100 pci-0000:00:14.0-usbv2-0:2 [0000:00:14.0] "Silicon Labs" "HubZ Smart Home Controller" "612019B8" 12Mbit/s 100mA
 if00 ff/00/00 cp210x
 if01 ff/00/00 cp210x
 usb of -1: dev/bus/usb/001/009 char 189:8
 tty of 0: dev/ttyUSB0 char 188:0
 tty of 1: dev/ttyUSB1 char 188:1
`},
		"nodes of every kind on a composite device of USB 3": {
			[]string{xhci, headset},
			`2-3 2/3 046d:0a44 ef/02/01 r0000 pci-0000:00:14.0-usbv3-0:3 [0000:00:14.0] "" "" "" 5000Mbit/s 896mA
 if00 01/01/00 snd-usb-audio
 if03 03/00/00 usbhid
 if04 0e/00/00 
 if0a 08/06/50 
 if0b 07/00/00 usblp
 usb of -1: dev/bus/usb/002/003 char 189:130
 hidraw of 3: dev/hidraw1 char 245:1
 input of 3: dev/input/event9 char 13:73
 input of 3: dev/input/event10 char 13:74
 video of 4: dev/video0 char 81:0
 media of 4: dev/media0 char 242:0
 sound of 0: dev/snd/controlC1 char 116:8
 sound of 0: dev/snd/pcmC1D0p char 116:7
 printer of 11: dev/usb/lp0 char 180:0
 storage of 10: dev/sda block 8:0
 storage of 10: dev/sda1 block 8:1
 sg of 10: dev/sg0 char 21:0
 bsg of 10: dev/bsg/6:0:0:0 char 243:0
 other of 3: dev/usb/hiddev0 char 180:96
`},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, test.tree...)
			got, err := Scan(root)
			must.NoError(t, err)
			if text := describeAll(got); text != test.want {
				t.Errorf("got\n%s\nwant\n%s", text, test.want)
			}
			again, err := Scan(root)
			if err != nil || !reflect.DeepEqual(got, again) {
				t.Errorf("a second scan of the same differs: %v", err)
			}
		})
	}
}

func TestLinks_FindUdevNames(t *testing.T) {
	got := Links(tree(t, headset, husbzb1))
	want := map[string][]string{
		"dev/ttyUSB0":       {"dev/serial/by-id/usb-Silicon_Labs_HubZ_Smart_Home_Controller_612019B8-if00-port0"},
		"dev/ttyUSB1":       {"dev/serial/by-id/usb-Silicon_Labs_HubZ_Smart_Home_Controller_612019B8-if01-port0"},
		"dev/input/event9":  {"dev/input/by-id/usb-046d_0a44-event-if03", "dev/input/by-id/usb-046d_0a44-if03-event-kbd"},
		"dev/video0":        {"dev/v4l/by-id/usb-046d_0a44-video-index0"},
		"dev/snd/controlC1": {"dev/snd/by-id/usb-046d_0a44-00"},
		"dev/sda":           {"dev/disk/by-id/usb-046d_0a44-0:0"},
	}
	test.Eq(t, want, got)
	test.MapEmpty(t, Links(tree(t, xhci)), test.Sprint("without udev"))
}

func TestScan_BusesMayShareAddresses(t *testing.T) {
	root := tree(t, xhci,
		cp2102(pc+"/usb1/1-1", 1, 2, "ttyUSB0", "0001"),
		cp2102(pc+"/usb2/2-1", 2, 2, "ttyUSB1", "0001"), // the same port of the same controller, by USB 3
		cp2102("sys/devices/pci0000:00/0000:00:1c.0/0000:02:00.0/usb3/3-1", 3, 2, "ttyUSB2", "0001"),
		cp2102("sys/devices/pci0000:00/0000:00:1d.0/usb10/10-1", 10, 2, "ttyUSB3", "0001"))
	got, err := Scan(root)
	must.NoError(t, err)
	var paths, pci []string
	for _, d := range got {
		must.Eq(t, 2, d.Address, must.Sprintf("%s is at %d/", d.Name, d.Bus))
		test.Eq(t, ports(d.Name)[0], d.Bus, test.Sprintf("%s is at %d/", d.Name, d.Bus))
		paths, pci = append(paths, d.Path), append(pci, d.PCIBusID)
	}
	test.Eq(t, []string{"pci-0000:00:14.0-usbv2-0:1", "pci-0000:00:14.0-usbv3-0:1", "pci-0000:02:00.0-usbv2-0:1",
		"pci-0000:00:1d.0-usbv2-0:1"}, paths,
		test.Sprint("paths are"))
	test.Eq(t, []string{"0000:00:14.0", "0000:00:14.0", "0000:02:00.0", "0000:00:1d.0"}, pci,
		test.Sprint("PCI addresses are"))
}

func TestScan_PathMatchesUdev(t *testing.T) {
	for name, test := range map[string]struct{ dir, more, path, pci string }{
		"in a platform device": {"sys/devices/platform/dummy_hcd.0/usb1/1-1",
			"sys/devices/platform/dummy_hcd.0:\n subsystem -> ../../../bus/platform",
			"platform-dummy_hcd.0-usbv2-0:1", ""},
		"in nested platform devices": {"sys/devices/platform/soc/fe800000.usb/xhci-hcd.0.auto/usb1/1-1/1-1.3",
			"sys/devices/platform/soc:\n subsystem -> ../../../bus/platform\nsys/devices/platform/soc/fe800000.usb:\n " +
				"subsystem -> ../../../../bus/platform\nsys/devices/platform/soc/fe800000.usb/xhci-hcd.0.auto:\n subsystem -> " +
				"../../../../../bus/platform",
			"platform-xhci-hcd.0.auto-usbv2-0:1.3", ""},
		"on a PCI bus of a small " +
			"board": {"sys/devices/platform/scb/fd500000.pcie/pci0000:00/0000:00:00.0/0000:01:00.0/usb1/1-1/1-1.2/1-1.2.4",
			"sys/devices/platform/scb/fd500000.pcie:\n subsystem -> " +
				"../../../../bus/platform\nsys/devices/platform/scb/fd500000.pcie/pci0000:00/0000:00:00.0:\n subsystem -> " +
				"../../../../../../bus/pci\nsys/devices/platform/scb/fd500000.pcie/pci0000:00/0000:00:00.0/0000:01:00.0:\n " +
				"subsystem -> ../../../../../../../bus/pci",
			"platform-fd500000.pcie-pci-0000:01:00.0-usbv2-0:1.2.4", "0000:01:00.0"},
		"behind a bridge, in a large PCI " +
			"domain": {"sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:1d.0/10000:e1:00.0/usb1/1-1", "",
			"pci-0000:00:0e.0-pci-10000:e1:00.0-usbv2-0:1", "10000:e1:00.0"},
		"of USB 1": {"sys/devices/pci0000:00/0000:00:1d.0/usb1/1-1",
			"sys/devices/pci0000:00/0000:00:1d.0/usb1:\n bDeviceProtocol 00\n speed 12",
			"pci-0000:00:1d.0-usbv1-0:1", "0000:00:1d.0"},
		"of EHCI": {"sys/devices/pci0000:00/0000:00:1d.7/usb1/1-1",
			"sys/devices/pci0000:00/0000:00:1d.7/usb1:\n bDeviceProtocol 00\n speed 480",
			"pci-0000:00:1d.7-usbv2-0:1", "0000:00:1d.7"},
		"of another subsystem with separators in its name": {"sys/devices/soc@0/usb@1,2/usb1/1-1",
			"sys/devices/soc@0/usb@1,2:\n subsystem -> ../../../bus/amba",
			"amba-usb_1_2-usbv2-0:1", ""},
		"outside the kernel's tree": {"sys/devices/x/1-1", "", "usb-1-1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Scan(tree(t, cp2102(test.dir, 1, 2, "ttyUSB0", ""), test.more))
			must.NoError(t, err)
			must.SliceLen(t, 1, got)
			if got[0].Path != test.path || got[0].PCIBusID != test.pci {
				t.Errorf("got %q, %q, want %q, %q", got[0].Path, got[0].PCIBusID, test.path, test.pci)
			}
		})
	}
}

func TestScan_AcceptsAnyText(t *testing.T) {
	long := strings.Repeat("äöü", 42)
	for written, want := range map[string]string{
		"NaN":                           "NaN",
		"1e10":                          "1e10",
		"a,b/c:d@e#f":                   "a,b/c:d@e#f",
		"Zürich ☃":                      "Zürich ☃",
		long:                            long,
		"  padded  ":                    "padded",
		"two\tparts\x00":                "two parts",
		"\x1b[31mred":                   "[31mred",
		"broken \xff\xfe":               "broken \uFFFD",
		"":                              "",
		"a\u202eb\u200bc\u2028d\u0085e": "a b c d e", // such characters reverse the line, have no width, or end a line
		strings.Repeat("x", 513):        strings.Repeat("x", 512),
		"x" + strings.Repeat("ä", 300):  "x" + strings.Repeat("ä", 255), // 511 bytes: half a character is cut off
		strings.Repeat("\xff", 10000):   "\uFFFD",
		strings.Repeat("\xffx", 5000):   strings.Repeat("\uFFFDx", 128),
	} {
		root := tree(t, xhci, cp2102(pc+"/usb1/1-1", 1, 2, "ttyUSB0", "x"))
		for _, attribute := range []string{"serial", "product", "manufacturer"} {
			root[pc+"/usb1/1-1/"+attribute] = &fstest.MapFile{Data: []byte(written + "\n")}
		}
		got, err := Scan(root)
		must.NoError(t, err)
		must.SliceLen(t, 1, got)
		d := got[0]
		must.Eq(t, want, d.Serial, must.Sprintf("%q was read as", written))
		must.Eq(t, want, d.Product, must.Sprintf("%q was read as", written))
		test.Eq(t, want, d.Manufacturer, test.Sprintf("%q was read as", written))
	}
}

// A task could otherwise get a file outside /dev as a node.
func TestScan_IgnoresNamesOutsideDev(t *testing.T) {
	for _, name := range []string{"../etc/shadow", "/etc/shadow", "a/../../etc/shadow", "..", ""} {
		root := tree(t, xhci, cp2102(pc+"/usb1/1-1", 1, 2, "ttyUSB0", "x"))
		found := 0
		for path, file := range root {
			if strings.HasSuffix(path, "/ttyUSB0/uevent") {
				file.Data, found = []byte("MAJOR=188\nMINOR=0\nDEVNAME="+name+"\n"), found+1
			}
		}
		got, err := Scan(root)
		must.NoError(t, err)
		must.SliceLen(t, 1, got)
		must.NotEq(t, 0, found)
		nodes := got[0].Nodes
		must.SliceLen(t, 1, nodes, must.Sprintf("of %q", name))
		test.Eq(t, USB, nodes[0].Kind, test.Sprintf("of %q", name))
	}
}

// A device that is plugged into another device is listed separately, with its own nodes.
func TestScan_HubHasNoNodesOfChildren(t *testing.T) {
	got, err := Scan(tree(t, xhci, cp2102(pc+"/usb1/1-1", 1, 2, "ttyUSB0", "outer"), cp2102(pc+"/usb1/1-1/1-1.2", 1, 3,
		"ttyUSB1", "inner")))
	must.NoError(t, err)
	must.SliceLen(t, 2, got)
	for i, want := range []string{"dev/ttyUSB0", "dev/ttyUSB1"} {
		if nodes := got[i].Nodes; len(nodes) != 2 || nodes[1].Path != want {
			t.Errorf("%s has %+v", got[i].Serial, nodes)
		}
	}
}

func TestScan_FailsWithoutSys(t *testing.T) {
	got, err := Scan(fstest.MapFS{"dev/null": {}})
	test.ErrorIs(t, err, fs.ErrNotExist, test.Sprintf("got %v", got))
}

// counted is a file system that calls the function at before the nth access, and only then.
type counted struct {
	fstest.MapFS
	n  *int
	at func()
}

func (c counted) step() {
	if *c.n--; *c.n == 0 {
		c.at()
	}
}
func (c counted) Open(name string) (fs.File, error)      { c.step(); return c.MapFS.Open(name) }
func (c counted) ReadLink(name string) (string, error)   { c.step(); return c.MapFS.ReadLink(name) }
func (c counted) ReadFile(name string) ([]byte, error)   { c.step(); return c.MapFS.ReadFile(name) }
func (c counted) Lstat(name string) (fs.FileInfo, error) { c.step(); return c.MapFS.Lstat(name) }
func (c counted) ReadDir(name string) ([]fs.DirEntry, error) {
	c.step()
	return c.MapFS.ReadDir(name)
}

func TestScan_OmitsVanishedDevice(t *testing.T) {
	other := cp2102(pc+"/usb1/1-2", 1, 3, "ttyUSB1", "0002")
	both := func() fstest.MapFS {
		return tree(t, xhci, cp2102(pc+"/usb1/1-1", 1, 2, "ttyUSB0", "0001"), other)
	}
	swapped := tree(t, xhci, cp2102(pc+"/usb1/1-1", 1, 4, "ttyUSB4", "0004"), other)
	known := map[string]bool{}
	for _, root := range []fs.FS{both(), swapped} {
		devices, err := Scan(root)
		must.NoError(t, err)
		must.SliceLen(t, 2, devices)
		for _, d := range devices {
			known[describe(d)] = true
		}
	}

	steps := 0
	_, err := Scan(counted{both(), &steps, nil})
	must.NoError(t, err)
	steps = -steps
	must.False(t, steps < 50, must.Sprintf("a scan took %d steps only", steps))
	var whole, without int
	for at := 1; at <= steps; at++ {
		for name, then := range map[string]fstest.MapFS{"unplugged": tree(t, xhci, other), "swapped": swapped} {
			n, root := at, both()
			devices, err := Scan(counted{root, &n, func() {
				clear(root)
				for name, file := range then {
					root[name] = file
				}
			}})
			must.NoError(t, err, must.Sprintf("%s at step %d", name, at))
			switch len(devices) {
			case 1:
				without++
			case 2:
				whole++
			default:
				t.Errorf("%s at step %d: %d devices", name, at, len(devices))
			}
			for _, d := range devices {
				if !known[describe(d)] {
					t.Errorf("%s at step %d: got a device that never existed:\n%s", name, at, describe(d))
				}
			}
		}
	}
	must.NotEq(t, 0, whole, must.Sprintf("%d scans saw both and %d one: the test tests nothing", whole, without))
	test.NotEq(t, 0, without,
		test.Sprintf("%d scans saw both and %d one: the test tests nothing", whole, without))
}
