// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// patterns are the options of a Match that are set.
type patterns []option

// option is one option that is set. A device fits it if any of the globs matches any of the device's values.
type option struct {
	name   string
	globs  []*regexp.Regexp
	values func(sysfs.Device) []string
}

func (o option) fits(d sysfs.Device) bool {
	return slices.ContainsFunc(o.values(d), func(value string) bool {
		return slices.ContainsFunc(o.globs, func(g *regexp.Regexp) bool { return g.MatchString(value) })
	})
}

// glob compiles a pattern in which * matches any characters and ? matches one. No other character is special.
func glob(pattern string) *regexp.Regexp {
	quoted := regexp.QuoteMeta(strings.ToValidUTF8(pattern, "\uFFFD"))
	expression := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(quoted)
	return regexp.MustCompile(`(?s)^` + expression + `$`)
}

var errEmpty = errors.New("no option selects devices: set id, serial, class, port, driver or udev")

func compile(m Match) (patterns, error) {
	var p patterns
	for _, o := range []struct {
		name    string
		written []string
		read    func(string) (string, error)
		values  func(sysfs.Device) []string
	}{
		{"serial", m.Serial, readText, func(d sysfs.Device) []string { return []string{d.Serial, PlainSerial(d.Serial)} }},
		{"port", m.Port, readPort, func(d sysfs.Device) []string {
			return []string{d.Name, d.Path, busRevision.ReplaceAllString(d.Path, "-usb-")}
		}},
		{"driver", m.Driver, readDriver, func(d sysfs.Device) []string { return d.Drivers() }},
		{"class", m.Class, readClass, classes},
		{"id", m.ID, readID, func(d sysfs.Device) []string { return []string{d.ID.String()} }},
	} {
		set := option{name: o.name, values: o.values}
		for _, written := range o.written {
			if written == "" {
				return p, fmt.Errorf("%s \"\" is empty and matches nothing: leave it out", o.name)
			}
			pattern, err := o.read(written)
			if err != nil {
				return p, fmt.Errorf("%s %q %w", o.name, written, err)
			}
			set.globs = append(set.globs, glob(pattern))
		}
		if set.globs != nil {
			p = append(p, set)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.Udev)) {
		switch pattern := m.Udev[key]; {
		case !property.MatchString(key):
			return p, fmt.Errorf("udev has %q, which is not a property: use a name that \"udevadm info\" shows, such as "+
				"ID_MODEL", key)
		case pattern == "":
			return p, fmt.Errorf("udev: %s \"\" is empty and matches nothing: leave it out", key)
		default:
			p = append(p, option{"udev property " + key, []*regexp.Regexp{glob(pattern)},
				func(d sysfs.Device) []string { return d.Udev[key] }})
		}
	}
	if p == nil {
		return nil, errEmpty
	}
	return p, nil
}

// fits reports whether the device fits all options.
func (p patterns) fits(d sysfs.Device) bool { return len(p.misfits(d)) == 0 }

// misfits returns all options that the device does not fit.
func (p patterns) misfits(d sysfs.Device) (all []option) {
	for _, o := range p {
		if !o.fits(d) {
			all = append(all, o)
		}
	}
	return all
}

// classes returns the classes of the device and of its interfaces in all settings.
func classes(d sysfs.Device) []string {
	all := []string{d.Class.String()}
	for _, c := range d.Settings {
		all = append(all, c.String())
	}
	for _, i := range d.Interfaces {
		all = append(all, i.Class.String())
	}
	return all
}

var property = regexp.MustCompile(`^[A-Za-z0-9_.]+$`)

// busRevision matches the part of udev's ID_PATH_WITH_USB_REVISION that is "-usb-" in ID_PATH.
var busRevision = regexp.MustCompile(`-usbv[0-9]-`)

func readText(s string) (string, error) { return s, nil }

func readDriver(s string) (string, error) {
	if strings.Contains(s, "/") {
		return "", fmt.Errorf("is a path: write the name alone, such as %q", s[strings.LastIndexByte(s, '/')+1:])
	}
	return s, nil
}

var hexGlob = regexp.MustCompile(`^[0-9a-f*?]+$`)

// readID returns a pattern for ID.String. It accepts upper case and a prefix 0x, too.
func readID(written string) (string, error) {
	vendor, product, _ := strings.Cut(strings.ToLower(written), ":")
	vendor, okVendor := readHex(vendor, 4)
	product, okProduct := readHex(product, 4)
	if !okVendor || !okProduct {
		return "", errors.New(`is not vendor and product as lsusb writes them, four hex digits each: use for example ` +
			`"10c4:ea60" or "10c4:*"`)
	}
	return vendor + ":" + product, nil
}

// readHex returns a hex number or pattern without 0x, and with leading zeros up to this many digits. It returns "" if s
// is invalid. whole is false if s has fewer digits and no 0x, so digits may be missing.
func readHex(s string, digits int) (hex string, whole bool) {
	s, prefixed := strings.CutPrefix(s, "0x")
	if !hexGlob.MatchString(s) || len(strings.ReplaceAll(s, "*", "")) > digits {
		return "", false
	}
	if missing := digits - len(s); missing > 0 && !strings.Contains(s, "*") {
		return strings.Repeat("0", missing) + s, prefixed
	}
	return s, true
}

// readClass returns a pattern for Class.String.
func readClass(written string) (string, error) {
	s := strings.ToLower(written)
	names := sysfs.ClassNames()
	if code, ok := names[strings.NewReplacer(" ", "-", "_", "-", "/", "-").Replace(s)]; ok {
		return fmt.Sprintf("%02x/*/*", code), nil
	}
	parts := strings.Split(s, "/")
	if len(parts) > 3 {
		return "", errors.New(`has more than class, subclass and protocol: use for example "03/01/02"`)
	}
	if code, ok := names[parts[0]]; ok {
		parts[0] = fmt.Sprintf("%02x", code)
	}
	for i, part := range parts {
		if parts[i], _ = readHex(part, 2); parts[i] == "" {
			return "", fmt.Errorf("is not known: write class, subclass and protocol in hex, such as \"03/01/02\" or \"03\", "+
				"or the class as one of %s", strings.Join(slices.Sorted(maps.Keys(names)), ", "))
		}
	}
	for len(parts) < 3 {
		parts = append(parts, "*")
	}
	return strings.Join(parts, "/"), nil
}

var portName = regexp.MustCompile(`^[0-9]+-[0-9]+(\.[0-9]+)*$`)

func readPort(s string) (string, error) {
	isPort := strings.ContainsAny(s, "*?") || portName.MatchString(s) || strings.Contains(s, "-0:")
	if !isPort || strings.Contains(s, "/") {
		return "", errors.New(`is not a port: use for example "1-1.4" or ` +
			`"pci-0000:00:14.0-usbv2-0:1.4" ("nomad-device-usb list" shows it)`)
	}
	return s, nil
}
