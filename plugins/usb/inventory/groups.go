// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/device"
)

// groups puts devices with the same block and product into one group. A group's name has the product in hex, because
// names in usb.ids differ between hosts, and some contain a slash, which separates the parts of a name in a job. Each
// share of a device is in its own group. Otherwise one task could get two shares of the same device: for a device
// block, Nomad takes any devices of one group.
func (v *inventory) groups(published []*usbDevice) []device.Group {
	members := map[[2]string][]*usbDevice{}
	for _, s := range published {
		key := [2]string{s.block.Kind, s.as.String()}
		members[key] = append(members[key], s)
	}
	var groups []device.Group
	for key, all := range members {
		attributes := v.attributes(all)
		for share := range all[0].block.Count {
			g := device.Group{
				Vendor: fmt.Sprintf("%04x", all[0].as.Vendor), Type: key[0], Name: all[0].product(share),
				Attributes: attributes,
			}
			for _, s := range all {
				g.Devices = append(g.Devices, device.Device{ID: s.ids()[share], Problem: s.problem, PCIBusID: s.PCIBusID})
			}
			groups = append(groups, g)
		}
	}
	return groups
}

// product returns the name of the group that has this share of the device.
func (s *usbDevice) product(share int) string {
	if share == 0 {
		return fmt.Sprintf("%04x", s.as.Product)
	}
	return fmt.Sprintf("%04x#%d", s.as.Product, share+1)
}

// attributes returns the attributes that all devices of a group have in common, and lists of their serial numbers and
// ports. It does not use Nomad's parser for texts, which would convert a serial number of digits to a number, and "nan"
// to a value on which a server panics.
func (v *inventory) attributes(all []*usbDevice) map[string]*structs.Attribute {
	first := all[0]
	vendor, product := v.names.Lookup(v.tree, first.as)
	if s := common(all, func(s *usbDevice) string { return s.Manufacturer }); s != "" {
		vendor = s
	}
	if s := common(all, func(s *usbDevice) string { return s.Product }); s != "" {
		product = s
	}
	description := product
	if vendor != "" && product != "" {
		description += " (" + vendor + ")"
	} else if vendor != "" {
		description = vendor
	}
	texts := map[string]string{
		"usb_id":         first.as.String(),
		"vendor":         vendor,
		"product":        product,
		"description":    description,
		"classification": common(all, func(s *usbDevice) string { return s.Classification() }),
		"driver":         common(all, func(s *usbDevice) string { return strings.Join(s.Drivers(), ",") }),
		"serials":        joined(all, func(s *usbDevice) string { return s.Serial }),
		"ports":          joined(all, func(s *usbDevice) string { return s.Path }),
	}
	if len(all) == 1 {
		texts["serial"], texts["port"] = first.Serial, first.Path
	}
	attributes := map[string]*structs.Attribute{
		"vendor_id":  structs.NewIntAttribute(int64(first.as.Vendor), ""),
		"product_id": structs.NewIntAttribute(int64(first.as.Product), ""),
	}
	for name, text := range texts {
		if text != "" {
			attributes[name] = structs.NewStringAttribute(text)
		}
	}
	speed := first.megabits()
	if speed > 0 && !slices.ContainsFunc(all, func(s *usbDevice) bool { return s.megabits() != speed }) {
		attributes["speed"] = structs.NewIntAttribute(speed, "")
	}
	class := first.Class
	if !slices.ContainsFunc(all, func(s *usbDevice) bool { return s.Class != class }) {
		attributes["class_id"] = structs.NewIntAttribute(int64(class.Class), "")
		attributes["sub_class_id"] = structs.NewIntAttribute(int64(class.Subclass), "")
		attributes["protocol_id"] = structs.NewIntAttribute(int64(class.Protocol), "")
	}
	return attributes
}

// megabits returns the speed in Mbit/s, rounded (1.5 is 2), or 0 if it is unknown.
func (s *usbDevice) megabits() int64 {
	f, _ := strconv.ParseFloat(s.Speed, 64)
	return int64(math.Round(f))
}

// common returns the text that all devices have, or "" if they differ.
func common(all []*usbDevice, of func(*usbDevice) string) string {
	text := of(all[0])
	for _, s := range all[1:] {
		if of(s) != text {
			return ""
		}
	}
	return text
}

// joined returns the texts of the devices, sorted, without duplicates, separated by commas.
func joined(all []*usbDevice, of func(*usbDevice) string) string {
	texts := map[string]bool{}
	for _, s := range all {
		if text := strings.ReplaceAll(of(s), ",", "_"); text != "" {
			texts[text] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(texts)), ",")
}
