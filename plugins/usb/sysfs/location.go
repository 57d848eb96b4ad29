// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// location returns the path of a device, and the PCI address of its controller, if that is on PCI. The path identifies
// the controller, the revision of the bus and the ports in the form of udev's ID_PATH_WITH_USB_REVISION (systemd,
// src/udev/udev-builtin-path_id.c), not by the order in which the kernel found the controllers. The revision is needed
// because a controller has one bus for USB 2 and another for USB 3, whose ports have the same numbers.
func location(root fs.FS, dir, name string) (where, pci string) {
	bus, way, _ := strings.Cut(name, "-")
	parts := strings.Split(dir, "/")
	at := len(parts) - len(ports(name)) // index of the root hub: the directories below it are ports
	if at < 0 || parts[at] != "usb"+bus {
		return "usb-" + name, "" // not a directory of the kernel
	}
	hub := strings.Join(parts[:at+1], "/")
	var chain []string
	for last := ""; at > 2; at-- { // stops at sys/devices
		object := strings.Join(parts[:at], "/")
		subsystem := ""
		if link, err := fs.ReadLink(root, path.Join(object, "subsystem")); err == nil {
			subsystem = path.Base(link)
		} else if pciAddress.MatchString(path.Base(object)) {
			subsystem = "pci"
		}
		// of consecutive objects in one subsystem, such as PCI bridges, only the last is added, because its address is
		// unique; the objects above are not needed, except the platform device of a small board's controller
		add := subsystem != last && (subsystem == "pci" || subsystem == "platform") || len(chain) == 0 && subsystem != ""
		if add {
			chain = append(chain, subsystem+"-"+Plain(path.Base(object), "._:-"))
		}
		if add && subsystem == "pci" && pci == "" {
			pci = path.Base(object)
		}
		last = subsystem
	}
	slices.Reverse(chain)
	return strings.Join(append(chain, "usbv"+revision(root, hub)+"-0:"+way), "-"), pci
}

// revision returns the USB revision of a bus, 1 to 3, from the protocol of its root hub (bDeviceProtocol in USB 2.0,
// 11.23.1, and USB 3.2, 10.15.1).
func revision(root fs.FS, hub string) string {
	a := attributes{root: root, dir: hub}
	switch a.optional("bDeviceProtocol", 16, 8) {
	case 3:
		return "3"
	case 0:
		if a.text("speed") == "12" {
			return "1"
		}
	}
	return "2"
}

// Plain replaces each character of a text by "_", unless it is an ASCII letter or digit, or is in but.
func Plain(text, but string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', strings.ContainsRune(but, r):
			return r
		}
		return '_'
	}, text)
}
