// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// patterns are those of a Match, in the form of what they are compared with.
type patterns struct {
	ids, serials, classes, ports, drivers []string

	udev map[string]string // by property
}

var errEmpty = errors.New("nothing says which devices are meant: set id, serial, class, port, driver or udev")

func compile(m Match) (patterns, error) {
	var p patterns
	for _, option := range []struct {
		name    string
		written []string
		read    func(string) (string, error)
		to      *[]string
	}{
		{"id", m.ID, readID, &p.ids},
		{"serial", m.Serial, readText, &p.serials},
		{"class", m.Class, readClass, &p.classes},
		{"port", m.Port, readPort, &p.ports},
		{"driver", m.Driver, readDriver, &p.drivers},
	} {
		for _, written := range option.written {
			if written == "" {
				return p, fmt.Errorf("%s \"\" is empty and fits nothing: leave it out", option.name)
			}
			pattern, err := option.read(written)
			if err != nil {
				return p, fmt.Errorf("%s %q %w", option.name, written, err)
			}
			*option.to = append(*option.to, pattern)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.Udev)) {
		switch pattern := m.Udev[key]; {
		case !property.MatchString(key):
			return p, fmt.Errorf("udev has %q, which is no property: write it as \"udevadm info\" does, such as ID_MODEL", key)
		case pattern == "":
			return p, fmt.Errorf("udev: %s \"\" is empty and fits nothing: leave it out", key)
		}
	}
	p.udev = m.Udev
	if len(p.udev)+len(p.ids)+len(p.serials)+len(p.classes)+len(p.ports)+len(p.drivers) == 0 {
		return p, errEmpty
	}
	return p, nil
}

// fits: an option that is not set fits everything.
func (p patterns) fits(d sysfs.Device) bool {
	classes, drivers := []string{d.Class.String()}, []string(nil)
	for _, c := range d.Settings {
		classes = append(classes, c.String())
	}
	for _, i := range d.Interfaces {
		classes = append(classes, i.Class.String())
		if i.Driver != "" {
			drivers = append(drivers, i.Driver)
		}
	}
	return (p.ids == nil || anyGlob(p.ids, d.ID.String())) &&
		(p.serials == nil || anyGlob(p.serials, d.Serial, PlainSerial(d.Serial))) &&
		(p.classes == nil || anyGlob(p.classes, classes...)) &&
		(p.ports == nil || anyGlob(p.ports, d.Name, d.Path, busRevision.ReplaceAllString(d.Path, "-usb-"))) &&
		(p.drivers == nil || anyGlob(p.drivers, drivers...)) &&
		p.fitsUdev(d)
}

// fitsUdev: each property of the device's own or of one of its nodes.
func (p patterns) fitsUdev(d sysfs.Device) bool {
	for key, pattern := range p.udev {
		if !anyGlob([]string{pattern}, d.Udev[key]...) {
			return false
		}
	}
	return true
}

var property = regexp.MustCompile(`^[A-Za-z0-9_.]+$`)

// busRevision is what udev's ID_PATH is without, and ID_PATH_WITH_USB_REVISION
// with.
var busRevision = regexp.MustCompile(`-usbv[0-9]-`)

func readText(s string) (string, error) { return s, nil }

func readDriver(s string) (string, error) {
	if strings.Contains(s, "/") {
		return "", fmt.Errorf("is a path: write the name alone, such as %q", s[strings.LastIndexByte(s, '/')+1:])
	}
	return s, nil
}

var (
	decimal   = regexp.MustCompile(`^[0-9]+$`)
	separated = regexp.MustCompile(`^(?:0x)?([0-9a-f]{4})[-/_. ]?(?:0x)?([0-9a-f]{4})$`)
	hexGlob   = regexp.MustCompile(`^[0-9a-f*?]+$`)
)

// readID takes upper case and 0x, too.
func readID(written string) (string, error) {
	s := strings.ToLower(written)
	vendor, product, ok := strings.Cut(s, ":")
	if !ok {
		return "", idWithoutColon(s)
	}
	vendor, okVendor := readHex(vendor, 4)
	product, okProduct := readHex(product, 4)
	switch {
	case vendor == "" || product == "":
		return "", errors.New(`is not vendor and product as lsusb writes them, four hex digits each: write it such as ` +
			`"10c4:ea60" or "10c4:*"`)
	case !okVendor || !okProduct:
		return "", fmt.Errorf("has not four hex digits on each side: write %q if that is meant", vendor+":"+product)
	}
	return vendor + ":" + product, nil
}

func idWithoutColon(s string) error {
	if parts := separated.FindStringSubmatch(s); parts != nil {
		return fmt.Errorf("has no colon: write %q", parts[1]+":"+parts[2])
	}
	if decimal.MatchString(s) {
		// HCL makes a decimal of a number without quotes
		n, err := strconv.ParseUint(s, 10, 32)
		switch {
		case err == nil && n > 0xffff:
			return fmt.Errorf("looks like the hex number 0x%x written without quotes: write \"%04x:%04x\"", n, n>>16, n&0xffff)
		case err == nil && len(s) == 4:
			return fmt.Errorf("has no product, and looks like the hex number 0x%04x written without quotes: write "+
				"\"%04x:*\", or \"%s:*\" if %s is the vendor", n, n, s, s)
		case err == nil:
			return fmt.Errorf("looks like the hex number 0x%04x written without quotes: write \"%04x:*\"", n, n)
		}
	}
	if vendor, ok := readHex(s, 4); ok {
		return fmt.Errorf("has no product: write %q for every one of this vendor", vendor+":*")
	}
	return errors.New(`is not vendor and product as lsusb writes them: write it such as "10c4:ea60" or "10c4:*"`)
}

// readHex reads a number of so many hex digits, with or without 0x. It is empty
// where there is no right form of it, and false where that differs from what is
// written.
func readHex(s string, digits int) (string, bool) {
	s, prefixed := strings.CutPrefix(s, "0x")
	if !hexGlob.MatchString(s) || len(strings.ReplaceAll(s, "*", "")) > digits {
		return "", false
	}
	if missing := digits - len(s); missing > 0 && !strings.Contains(s, "*") {
		return strings.Repeat("0", missing) + s, prefixed
	}
	return s, true
}

// readClass makes a pattern for Class.String.
func readClass(written string) (string, error) {
	s := strings.ToLower(written)
	names := sysfs.ClassNames()
	if code, ok := names[strings.NewReplacer(" ", "-", "_", "-", "/", "-").Replace(s)]; ok {
		return fmt.Sprintf("%02x/*/*", code), nil
	}
	parts := strings.Split(s, "/")
	if len(parts) > 3 {
		return "", errors.New(`has more than class, subclass and protocol: write it such as "03/01/02"`)
	}
	if code, ok := names[parts[0]]; ok {
		parts[0] = fmt.Sprintf("%02x", code)
	}
	for i, part := range parts {
		hex, _ := readHex(part, 2)
		if n, err := strconv.ParseUint(part, 10, 8); hex == "" && err == nil {
			return "", fmt.Errorf("is not in hex: write \"%02x\" for %d", n, n)
		}
		if hex == "" && i > 0 {
			return "", errors.New(`is not in hex with two digits each for class, subclass and protocol: write it such as ` +
				`"03/01/02"`)
		}
		if hex == "" {
			return "", fmt.Errorf("is not known: write it in hex, such as \"03\", or as one of %s",
				strings.Join(slices.Sorted(maps.Keys(names)), ", "))
		}
		parts[i] = hex
	}
	for len(parts) < 3 {
		parts = append(parts, "*")
	}
	return strings.Join(parts, "/"), nil
}

var portName = regexp.MustCompile(`^[0-9]+-[0-9]+(\.[0-9]+)*$`)

func readPort(s string) (string, error) {
	switch {
	case strings.Contains(s, "/"):
		return "", errors.New(`is a path of a file: write where the device is plugged in, such as "1-1.4" ` +
			`("nomad-device-usb list" shows it)`)
	case strings.HasPrefix(s, "usb") && portName.MatchString(s[3:]):
		return "", fmt.Errorf("fits nothing: write %q", s[3:])
	case !strings.ContainsAny(s, "*?") && !portName.MatchString(s) && !strings.Contains(s, "-0:"):
		return "", errors.New(`is not where a device is plugged in: write it such as "1-1.4" or ` +
			`"pci-0000:00:14.0-usbv2-0:1.4" ("nomad-device-usb list" shows it)`)
	}
	return s, nil
}
