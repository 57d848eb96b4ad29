// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoenig/test/must"
)

// tree makes a file system from a listing: "dir:", and below it "file content" or "link -> target". In a
// uevent a space stands for a newline.
func tree(t *testing.T, listing ...string) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	dir := ""
	for line := range strings.Lines(strings.Join(listing, "\n")) {
		line = strings.TrimRight(strings.TrimLeft(line, " \t"), "\n")
		name, content, _ := strings.Cut(line, " ")
		to, link := strings.CutPrefix(content, "-> ")
		switch {
		case line == "":
		case strings.HasSuffix(line, ":"):
			dir = strings.TrimSuffix(line, ":")
		case link:
			files[path.Join(dir, name)] = &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink | 0o777}
		case name == "uevent":
			files[path.Join(dir, name)] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(content, " ", "\n") + "\n")}
		default:
			files[path.Join(dir, name)] = &fstest.MapFile{Data: []byte(content + "\n")}
		}
	}
	for name, f := range files {
		if f.Mode&fs.ModeSymlink != 0 && strings.HasPrefix(name, devices) {
			_, err := fs.Stat(files, name)
			must.NoError(t, err, must.Sprint("the listing is wrong"))
		}
	}
	return files
}

// xhci has a PC's controller, with a bus for USB 2 and another for USB 3.
const xhci = `
sys/bus/usb/devices:
  usb1 -> ../../../devices/pci0000:00/0000:00:14.0/usb1
  usb2 -> ../../../devices/pci0000:00/0000:00:14.0/usb2
  1-0:1.0 -> ../../../devices/pci0000:00/0000:00:14.0/usb1/1-0:1.0
sys/devices/pci0000:00/0000:00:14.0:
  subsystem -> ../../../bus/pci
sys/devices/pci0000:00/0000:00:14.0/usb1:
  busnum 1
  devnum 1
  idVendor 1d6b
  idProduct 0002
  bDeviceClass 09
  bDeviceProtocol 01
  speed 480
  uevent MAJOR=189 MINOR=0 DEVNAME=bus/usb/001/001 DEVTYPE=usb_device
sys/devices/pci0000:00/0000:00:14.0/usb1/1-0:1.0:
  bInterfaceClass 09
sys/devices/pci0000:00/0000:00:14.0/usb2:
  busnum 2
  devnum 1
  idVendor 1d6b
  idProduct 0003
  bDeviceClass 09
  bDeviceProtocol 03
  speed 10000
  uevent MAJOR=189 MINOR=128 DEVNAME=bus/usb/002/001 DEVTYPE=usb_device
`

// cp2102 returns a stick with one serial port. at is the directory of the stick, tty the name of its node in /dev.
func cp2102(at string, bus, address int, tty string, serial string) string {
	name := path.Base(at)
	up := strings.Repeat("../", strings.Count(at, "/"))
	s := fmt.Sprintf(`
sys/bus/usb/devices:
  %[2]s -> ../../../%[7]s
  %[2]s:1.0 -> ../../../%[7]s/%[2]s:1.0
%[1]s:
  subsystem -> %[6]sbus/usb
  busnum %[3]d
  devnum %[4]d
  idVendor 10c4
  idProduct ea60
  bcdDevice 0100
  bDeviceClass 00
  bDeviceSubClass 00
  bDeviceProtocol 00
  bConfigurationValue 1
  bMaxPower 100mA
  speed 12
  manufacturer Silicon Labs
  product CP2102 USB to UART Bridge Controller
  uevent MAJOR=189 MINOR=%[8]d DEVNAME=bus/usb/%03[3]d/%03[4]d DEVTYPE=usb_device DRIVER=usb PRODUCT=10c4/ea60/100
%[1]s/power:
  runtime_status active
%[1]s/ep_00:
  uevent
%[1]s/%[2]s:1.0:
  subsystem -> ../%[6]sbus/usb
  driver -> ../%[6]sbus/usb/drivers/cp210x
  bInterfaceNumber 00
  bInterfaceClass ff
  bInterfaceSubClass 00
  bInterfaceProtocol 00
  uevent DEVTYPE=usb_interface DRIVER=cp210x PRODUCT=10c4/ea60/100 INTERFACE=255/0/0
%[1]s/%[2]s:1.0/%[5]s:
  subsystem -> ../../%[6]sbus/usb-serial
  uevent DRIVER=cp210x
%[1]s/%[2]s:1.0/%[5]s/tty/%[5]s:
  subsystem -> ../../../../%[6]sclass/tty
  device -> ../../../%[5]s
  uevent MAJOR=188 MINOR=%[9]s DEVNAME=%[5]s
`, at, name, bus, address, tty, up, strings.TrimPrefix(at, "sys/"), (bus-1)*128+address-1, strings.TrimPrefix(tty, "ttyUSB"))
	if serial != "" {
		s += at + ":\n  serial " + serial + "\n"
	}
	return s
}

// describe returns a device as text.
func describe(d Device) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d/%d %s %s r%04x %s [%s] %q %q %q %sMbit/s %dmA\n", d.Name, d.Bus, d.Address, d.ID, d.Class,
		d.Release,
		d.Path, d.PCIBusID, d.Manufacturer, d.Product, d.Serial, d.Speed, d.MaxPower)
	for _, i := range d.Interfaces {
		fmt.Fprintf(&b, " if%02x %s %s\n", i.Number, i.Class, i.Driver)
	}
	for _, n := range d.Nodes {
		kind := "char"
		if n.Block {
			kind = "block"
		}
		fmt.Fprintf(&b, " %s of %d: %s %s %d:%d\n", n.Kind, n.Interface, n.Path, kind, n.Major, n.Minor)
	}
	return b.String()
}

func describeAll(devices []Device) string {
	var b strings.Builder
	for _, d := range devices {
		b.WriteString(describe(d))
	}
	return b.String()
}
