// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kinds maps kernel subsystems to the kinds of their nodes.
var kinds = map[string]Kind{
	"usb": USB, "tty": TTY, "hidraw": HIDRaw, "input": Input, "video4linux": Video, "media": Media, "sound": Sound,
	"block": Storage, "scsi_tape": Storage, "scsi_changer": Storage, "scsi_generic": SG, "bsg": BSG,
}

// Kinds are all kinds, in the order of Device.Nodes.
var Kinds = []Kind{USB, TTY, HIDRaw, Input, Video, Media, Sound, Printer, Storage, SG, BSG, Other}

// nodes finds the nodes of a device and of its interfaces. Each node has a directory below the device's, with
// a file uevent that names the node.
func nodes(root fs.FS, dir string) []Node {
	var found []Node
	var walk func(at string, of int)
	walk = func(at string, of int) {
		entries, _ := fs.ReadDir(root, at)
		event := readUevent(root, at, entries)
		if at != dir && event["DEVTYPE"] == "usb_device" {
			return // another device, plugged into this one
		}
		if event["DEVTYPE"] == "usb_interface" {
			// a name such as 1-1.4:1.0 consists of device, configuration and interface
			if n, err := strconv.Atoi(at[strings.LastIndexByte(at, '.')+1:]); err == nil {
				of = n
			}
		}
		if name := event["DEVNAME"]; fs.ValidPath(name) {
			found = append(found, node(root, at, of, name, event))
		}
		for _, e := range entries {
			if e.IsDir() && e.Name() != "power" && !strings.HasPrefix(e.Name(), "ep_") {
				walk(path.Join(at, e.Name()), of)
			}
		}
	}
	walk(dir, -1)
	slices.SortFunc(found, func(a, b Node) int {
		return cmp.Or(
			cmp.Compare(min(a.Interface, 0), min(b.Interface, 0)),
			cmp.Compare(slices.Index(Kinds, a.Kind), slices.Index(Kinds, b.Kind)),
			cmp.Compare(a.Interface, b.Interface),
			cmp.Compare(padded(a.Path), padded(b.Path)),
		)
	})
	return found
}

func node(root fs.FS, dir string, of int, name string, event map[string]string) Node {
	link, _ := fs.ReadLink(root, path.Join(dir, "subsystem"))
	subsystem := path.Base(link)
	kind, known := kinds[subsystem]
	switch {
	case subsystem == "usbmisc" && strings.HasPrefix(path.Base(name), "lp"):
		kind = Printer
	case !known:
		kind = Other
	}
	major, _ := strconv.ParseUint(event["MAJOR"], 10, 32)
	minor, _ := strconv.ParseUint(event["MINOR"], 10, 32)
	return Node{Kind: kind, Path: path.Join("dev", name), Interface: of, Block: subsystem == "block", Major: uint32(major),
		Minor: uint32(minor)}
}

// What returns the node's kind or, for the kind Other, the kernel's name without numbers: "frontend" for
// dev/dvb/adapter0/frontend0, "iio" for dev/iio:device0.
func (n Node) What() string {
	name, _, _ := strings.Cut(path.Base(n.Path), ":")
	name = Plain(strings.TrimRight(name, "0123456789"), "-")
	if n.Kind != Other || name == "" || slices.Contains(Kinds, Kind(name)) {
		return string(n.Kind)
	}
	return name
}

// readUevent reads the properties of a directory's kernel object. It returns nil if the directory is not a
// kernel object.
func readUevent(root fs.FS, dir string, entries []fs.DirEntry) map[string]string {
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "uevent" }) {
		return nil
	}
	b, err := fs.ReadFile(root, path.Join(dir, "uevent"))
	if err != nil {
		return nil
	}
	event := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			event[key] = value
		}
	}
	return event
}

// Links returns udev's links to device nodes, sorted, by the path of the node. The name of a link contains the device's
// name, as in "dev/serial/by-id/usb-Silicon_Labs_CP2102_0001-if00-port0". udev makes the links some time after the
// device appears.
func Links(root fs.FS) map[string][]string {
	links := make(map[string][]string)
	for _, class := range []string{"disk", "input", "serial", "snd", "v4l"} {
		dir := path.Join("dev", class, "by-id")
		entries, _ := fs.ReadDir(root, dir) // sorted
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			if to, err := target(root, name); err == nil {
				links[to] = append(links[to], name)
			}
		}
	}
	return links
}

var digits = regexp.MustCompile(`[0-9]+`)

// padded pads the numbers of a path with zeros, so event9 sorts before event10.
func padded(path string) string {
	return digits.ReplaceAllStringFunc(path, func(number string) string { return fmt.Sprintf("%010s", number) })
}
