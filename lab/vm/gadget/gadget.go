// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package gadget plugs USB devices into the machine that it runs on, preferably a VM of package vm. The kernel
// simulates both the device (configfs, usb_gadget) and the port that it is plugged into (dummy_hcd). Everything above
// that is real: the kernel enumerates the device, binds drivers to it, creates its nodes and sends uevents.
//
// The package needs root, the modules dummy_hcd and libcomposite, and configfs.
package gadget

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

const (
	configfs = "/sys/kernel/config/usb_gadget"
	udcs     = "/sys/class/udc"
	english  = "strings/0x409"
)

// Load creates ports, numbered from 0 (dummy_udc.0), and loads the drivers of the devices. Each port has its own USB
// bus. A later call can't create more ports: if it requests more, it fails.
func Load(ports int) error {
	for _, args := range [][]string{
		{"dummy_hcd", fmt.Sprintf("num=%d", ports)}, {"-a", "libcomposite", "cdc_acm", "usbhid", "hid_generic"},
	} {
		if out, err := exec.Command("/sbin/modprobe", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("failed to run modprobe %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(udcs, udc(ports-1))); err != nil {
		return fmt.Errorf("failed to find %d USB ports: %w", ports, err)
	}
	return nil
}

func udc(port int) string { return fmt.Sprintf("dummy_udc.%d", port) }

// Device describes a USB device.
type Device struct {
	Vendor, Product uint16

	// The device's strings; an empty one is omitted.
	Serial, Manufacturer, Name string

	Functions []Function // at least one; each has one or two interfaces
}

// Function is one function of a device, such as a serial port.
type Function struct {
	kind  string
	files map[string]string // values of attributes in configfs, by path
	far   string            // path of the device node at the other end; %s is its number
}

// ACM returns a serial port, /dev/ttyACM0 or higher. Its other end is /dev/ttyGS0 or higher.
func ACM() Function { return Function{kind: "acm", far: "/dev/ttyGS%s"} }

// Keyboard returns a HID device, with an input and a hidraw node.
func Keyboard() Function {
	return Function{kind: "hid", files: map[string]string{
		"protocol": "1", "subclass": "1", "report_length": "8", "report_desc": keyboard,
	}}
}

// keyboard is the report descriptor of the kernel's Documentation/usb/gadget_hid.rst.
const keyboard = "\x05\x01\x09\x06\xa1\x01\x05\x07\x19\xe0\x29\xe7\x15\x00\x25\x01\x75\x01\x95\x08\x81\x02" +
	"\x95\x01\x75\x08\x81\x03\x95\x05\x75\x01\x05\x08\x19\x01\x29\x05\x91\x02\x95\x01\x75\x03\x91\x03" +
	"\x95\x06\x75\x08\x15\x00\x25\x65\x05\x07\x19\x00\x29\x65\x81\x00\xc0"

// Gadget is a device that can be plugged in.
type Gadget struct {
	name string
	dir  string
	far  []string
}

// New creates a device but does not plug it in. The name must be unused. Close the device after use.
func New(name string, d Device) (_ *Gadget, err error) {
	if len(d.Functions) == 0 {
		return nil, fmt.Errorf("the USB device %s has no function", name)
	}
	g := &Gadget{name: name, dir: filepath.Join(configfs, name)}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("failed to create the USB device: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("failed to create the USB device: %w", err), g.Close())
		}
	}()
	for _, dir := range []string{english, "configs/c.1", "configs/c.1/" + english} {
		if err := os.MkdirAll(filepath.Join(g.dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	for file, text := range map[string]string{
		"idVendor": fmt.Sprintf("0x%04x", d.Vendor), "idProduct": fmt.Sprintf("0x%04x", d.Product),
		"bcdDevice": "0x0100", "bcdUSB": "0x0200",
		english + "/manufacturer": d.Manufacturer, english + "/product": d.Name, english + "/serialnumber": d.Serial,
		"configs/c.1/MaxPower": "100",
	} {
		if text == "" {
			continue
		}
		if err := g.write(file, text); err != nil {
			return nil, err
		}
	}
	for i, f := range d.Functions {
		if err := g.add(f, i); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// add creates a function, and adds it to the configuration.
func (g *Gadget) add(f Function, i int) error {
	dir := fmt.Sprintf("functions/%s.%s-%d", f.kind, g.name, i)
	if err := os.Mkdir(filepath.Join(g.dir, dir), 0o755); err != nil { // also loads the function's kernel module
		return err
	}
	for file, text := range f.files {
		if err := g.write(filepath.Join(dir, file), text); err != nil {
			return err
		}
	}
	if f.far != "" {
		b, err := os.ReadFile(filepath.Join(g.dir, dir, "port_num"))
		if err != nil {
			return err
		}
		g.far = append(g.far, fmt.Sprintf(f.far, strings.TrimSpace(string(b))))
	}
	return os.Symlink(filepath.Join(g.dir, dir), filepath.Join(g.dir, "configs/c.1", filepath.Base(dir)))
}

func (g *Gadget) write(file, text string) error {
	return os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0)
}

// Far returns the terminals at the other ends of the device's serial ports, in order.
func (g *Gadget) Far() []string { return g.far }

// Plug plugs the device into a free port. The first port is 0. The kernel detects it about 100 ms after Plug returns.
func (g *Gadget) Plug(port int) error {
	if _, err := os.Stat(filepath.Join(udcs, udc(port))); err != nil {
		return fmt.Errorf("failed to plug the USB device %s: no port %d: %w", g.name, port, err)
	}
	if err := g.write("UDC", udc(port)); err != nil {
		return fmt.Errorf("failed to plug the USB device %s: %w", g.name, err)
	}
	return nil
}

// Plugged reports whether the device is in a port.
func (g *Gadget) Plugged() bool {
	b, err := os.ReadFile(filepath.Join(g.dir, "UDC"))
	return err == nil && strings.TrimSpace(string(b)) != ""
}

// Unplug pulls the device out. It does nothing if the device is not plugged in.
func (g *Gadget) Unplug() error {
	if !g.Plugged() {
		return nil
	}
	if err := g.write("UDC", "\n"); err != nil {
		return fmt.Errorf("failed to unplug the USB device %s: %w", g.name, err)
	}
	return nil
}

// Close unplugs and removes the device. It does nothing if the device was already removed.
func (g *Gadget) Close() error {
	if _, err := os.Stat(g.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{g.Unplug()}
	// remove only the entries that New has made: configfs removes the others with their directory
	links, _ := filepath.Glob(filepath.Join(g.dir, "configs/c.1/*.*"))
	functions, _ := filepath.Glob(filepath.Join(g.dir, "functions/*"))
	paths := append(links, filepath.Join(g.dir, "configs/c.1", english), filepath.Join(g.dir, "configs/c.1"))
	paths = append(append(paths, functions...), filepath.Join(g.dir, english), g.dir)
	for _, p := range paths {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("failed to remove the USB device %s: %w", g.name, err)
	}
	return nil
}

// Open opens a terminal in raw mode, in which it does not change the bytes.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	c, err := f.SyscallConn() // Fd would make the file blocking
	if err == nil {
		cerr := c.Control(func(fd uintptr) { _, err = term.MakeRaw(int(fd)) })
		err = errors.Join(err, cerr)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
