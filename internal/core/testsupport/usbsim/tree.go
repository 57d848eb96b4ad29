// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbsim

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// drivers maps vendors to the kernel's drivers for their serial ports.
var drivers = map[uint16]string{0x0403: "ftdi_sio", 0x067b: "pl2303", 0x10c4: "cp210x", 0x1a86: "ch341"}

// busTree returns the directory of a bus. Each bus has its own controller.
func busTree(bus int) string {
	return fmt.Sprintf("sys/devices/pci0000:00/0000:00:%02x.0/usb%d", 0x13+bus, bus)
}

func treeOf(port string) string {
	s := Stick{Port: port}
	return path.Join(busTree(s.bus()), port)
}

func usbNode(bus, address int) string { return fmt.Sprintf("dev/bus/usb/%03d/%03d", bus, address) }

// writer writes files below a directory. After an error, it writes nothing more.
type writer struct {
	root *os.Root
	err  error
}

func (w *writer) dir(name string) {
	if w.err == nil {
		w.err = w.root.MkdirAll(name, 0o755)
	}
}

func (w *writer) file(name, content string) {
	w.dir(path.Dir(name))
	if w.err == nil {
		w.err = w.root.WriteFile(name, []byte(content), 0o644)
	}
}

// link makes a relative symbolic link to a path. It is not an error if a killed process has left the same link.
func (w *writer) link(name, to string) {
	w.dir(path.Dir(name))
	if w.err == nil {
		to, w.err = filepath.Rel(path.Dir(name), to)
	}
	if w.err != nil {
		return
	}
	if err := w.root.Symlink(to, name); errors.Is(err, os.ErrExist) {
		if there, _ := w.root.Readlink(name); there != to {
			w.err = err
		}
	} else {
		w.err = err
	}
}

// attributes writes one-line files from pairs of name and content. It makes no file if the content is empty, just as
// the kernel makes none for a string that a device lacks.
func (w *writer) attributes(dir string, pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			w.file(path.Join(dir, pairs[i]), pairs[i+1]+"\n")
		}
	}
}

func (w *writer) subsystem(object, name string) {
	w.dir(path.Join("sys", name))
	w.link(path.Join(object, "subsystem"), path.Join("sys", name))
}

func usbUevent(vendor, product uint16, bus, address int) string {
	return fmt.Sprintf("MAJOR=189\nMINOR=%d\nDEVNAME=bus/usb/%03d/%03d\nDEVTYPE=usb_device\n"+
		"DRIVER=usb\nPRODUCT=%x/%x/100\nTYPE=0/0/0\nBUSNUM=%03d\nDEVNUM=%03d",
		(bus-1)*128+address-1, bus, address, vendor, product, bus, address)
}

// write makes all files of the stick. Scans find the stick only after the last step.
func (p *Plugged) write() error {
	w := &writer{root: p.root}
	bus, tree := p.bus(), treeOf(p.Port)
	vendor, product := p.ids()
	if !exists(p.root, fmt.Sprintf("sys/bus/usb/devices/usb%d", bus)) {
		w.rootHub(bus)
	}
	binary := string(p.descriptors())
	w.subsystem(tree, "bus/usb")
	w.attributes(tree,
		"busnum", fmt.Sprint(bus), "devnum", fmt.Sprint(p.Address), "devpath", p.Port[strings.IndexByte(p.Port, '-')+1:],
		"idVendor", p.ID[:4], "idProduct", p.ID[5:], "bcdDevice", "0100",
		"bDeviceClass", "00", "bDeviceSubClass", "00", "bDeviceProtocol", "00", "bNumConfigurations", "1",
		"bConfigurationValue", "1",
		"bNumInterfaces", fmt.Sprintf("%2d", len(p.Functions)), "bMaxPower", "100mA", "speed", "12", "version", " 2.00",
		"maxchild", "0", "urbnum", "0",
		"manufacturer", p.Manufacturer, "product", p.Product, "serial", p.Serial,
		"power/runtime_status", "active", "power/control", "on",
		"uevent", usbUevent(vendor, product, bus, p.Address))
	w.file(path.Join(tree, "descriptors"), binary)
	for i, f := range p.Functions {
		p.function(w, i, f)
	}
	w.file(usbNode(bus, p.Address), binary)
	for i, node := range p.Nodes {
		if w.err == nil {
			w.err = p.root.Symlink(p.terminals[i].name(), node)
		}
		if p.Functions[i] == "tty" && w.err == nil {
			// as with udev, only one of two sticks with the same name gets the link
			if name := p.udevName(i); !exists(p.root, name) {
				w.link(name, node)
			}
		}
	}
	for i := range p.Functions {
		w.link(path.Join("sys/bus/usb/devices", p.interfaceName(i)), path.Join(tree, p.interfaceName(i)))
	}
	w.link(path.Join("sys/bus/usb/devices", p.Port), tree)
	return w.err
}

func (p *Plugged) interfaceName(i int) string { return fmt.Sprintf("%s:1.%d", p.Port, i) }

// function writes the directories of an interface and its node, and chooses the node's name.
func (p *Plugged) function(w *writer, i int, kind string) {
	object := path.Join(treeOf(p.Port), p.interfaceName(i))
	vendor, product := p.ids()
	driver, class, format, major := cmp.Or(drivers[vendor], "cp210x"), "ff", "ttyUSB%d", 188
	if kind == "hidraw" {
		driver, class, format, major = "usbhid", "03", "hidraw%d", 245
	}
	n := 0
	for exists(p.root, "dev/"+fmt.Sprintf(format, n)) || slices.Contains(p.Nodes, "dev/"+fmt.Sprintf(format, n)) {
		n++
	}
	name := fmt.Sprintf(format, n)
	parent := name // the parent of the class directory: the port or the HID device
	if kind == "hidraw" {
		parent = fmt.Sprintf("0003:%04X:%04X.%04X", vendor, product, n+1)
	}
	p.Nodes = append(p.Nodes, "dev/"+name)

	w.subsystem(object, "bus/usb")
	w.attributes(object, "bInterfaceNumber", fmt.Sprintf("%02x", i), "bAlternateSetting", " 0", "bNumEndpoints", "02",
		"bInterfaceClass", class, "bInterfaceSubClass", "00", "bInterfaceProtocol", "00",
		"uevent", fmt.Sprintf("DEVTYPE=usb_interface\nDRIVER=%s\nPRODUCT=%x/%x/100\nTYPE=0/0/0", driver, vendor,
			product))
	w.dir(path.Join("sys/bus/usb/drivers", driver))
	w.link(path.Join(object, "driver"), path.Join("sys/bus/usb/drivers", driver))
	node := path.Join(object, parent, kind, name)
	w.subsystem(node, "class/"+kind)
	w.attributes(node, "dev", fmt.Sprintf("%d:%d", major, n), "uevent", fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=%s",
		major, n, name))
}

// udevName returns the link name of a serial port according to udev's rules (60-serial.rules).
func (p *Plugged) udevName(i int) string {
	parts := []string{cmp.Or(p.Manufacturer, p.ID[:4]), cmp.Or(p.Product, p.ID[5:])}
	if p.Serial != "" {
		parts = append(parts, p.Serial)
	}
	name := notInName.ReplaceAllString(strings.Join(parts, "_"), "_")
	return fmt.Sprintf("dev/serial/by-id/usb-%s-if%02x-port0", name, i)
}

var notInName = regexp.MustCompile(`[^0-9A-Za-z._-]`)

func (w *writer) rootHub(bus int) {
	tree := busTree(bus)
	w.subsystem(path.Dir(tree), "bus/pci")
	w.attributes(path.Dir(tree), "uevent", fmt.Sprintf("DRIVER=xhci_hcd\nPCI_SLOT_NAME=%s", path.Base(path.Dir(tree))))
	w.subsystem(tree, "bus/usb")
	w.attributes(tree,
		"busnum", fmt.Sprint(bus), "devnum", "1", "devpath", "0", "idVendor", "1d6b", "idProduct", "0002", "bcdDevice",
		"0601",
		"bDeviceClass", "09", "bDeviceSubClass", "00", "bDeviceProtocol", "01", "bNumConfigurations", "1",
		"bConfigurationValue", "1",
		"bMaxPower", "0mA", "speed", "480", "version", " 2.00", "maxchild", "99",
		"uevent", usbUevent(0x1d6b, 2, bus, 1))
	w.file(path.Join(tree, "descriptors"), string(rootHubDescriptors))
	w.file(usbNode(bus, 1), string(rootHubDescriptors))
	w.link(path.Join("sys/bus/usb/devices", path.Base(tree)), tree)
}

func exists(root *os.Root, name string) bool {
	_, err := root.Lstat(name)
	return err == nil
}
