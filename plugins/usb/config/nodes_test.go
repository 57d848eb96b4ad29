// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"testing"

	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// webcam is a composite device whose interfaces have several nodes of the same kind.
var webcam = sysfs.Device{
	Name: "1-2",
	Interfaces: []sysfs.Interface{
		{Number: 0, Driver: "uvcvideo"}, {Number: 2, Driver: "snd-usb-audio"}, {Number: 4, Driver: "usbhid"}, {Number: 5,
			Driver: "usbhid"}, {Number: 6},
	},
	Nodes: []sysfs.Node{
		{Kind: sysfs.USB, Path: "dev/bus/usb/001/009", Interface: -1},
		{Kind: sysfs.HIDRaw, Path: "dev/hidraw3", Interface: 4},
		{Kind: sysfs.HIDRaw, Path: "dev/hidraw4", Interface: 5},
		{Kind: sysfs.Input, Path: "dev/input/event7", Interface: 4},
		{Kind: sysfs.Input, Path: "dev/input/event8", Interface: 4},
		{Kind: sysfs.Input, Path: "dev/input/event9", Interface: 5},
		{Kind: sysfs.Video, Path: "dev/video0", Interface: 0},
		{Kind: sysfs.Video, Path: "dev/video1", Interface: 0},
		{Kind: sysfs.Media, Path: "dev/media0", Interface: 0},
		{Kind: sysfs.Sound, Path: "dev/snd/pcmC1D0c", Interface: 2},
		{Kind: sysfs.Storage, Path: "dev/sda", Interface: 6, Block: true},
		{Kind: sysfs.Storage, Path: "dev/sda1", Interface: 6, Block: true},
		{Kind: sysfs.SG, Path: "dev/sg0", Interface: 6},
		{Kind: sysfs.BSG, Path: "dev/bsg/6:0:0:0", Interface: 6},
	},
}

func TestNodes_NamesIgnoreKernelNumbers(t *testing.T) {
	for name, c := range map[string]struct{ nodes, want []string }{
		"all by default, except a disk's nodes": {nil, []string{"hidraw-if04", "hidraw-if05", "input-if04", "input-if04-2",
			"input-if05", "video", "video-2", "media", "sound"}},
		"some":              {[]string{"video", "storage?"}, []string{"video", "video-2", "storage", "storage-2"}},
		"a disk's sg nodes": {[]string{"sg", "bsg?"}, []string{"sg", "bsg"}},
		"a missing kind":    {[]string{"tty?"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := &Parsed{Block: Block{Nodes: c.nodes}}
			var got []string
			for _, n := range b.Choose(webcam) {
				got = append(got, n.Name)
			}
			test.SliceEqOp(t, c.want, got)
		})
	}
}

// With the usb node of a disk, a task can send any SCSI command to the disk. So the block must list this node.
func TestNodes_UsbNodeOfADiskMustBeListed(t *testing.T) {
	usb, sda := sysfs.Node{Kind: sysfs.USB, Interface: -1}, sysfs.Node{Kind: sysfs.Storage}
	disk := sysfs.Class{Class: 8, Subclass: 6, Protocol: 0x50}
	yes, no := true, false
	for name, c := range map[string]struct {
		device sysfs.Device
		block  Block
		want   bool
	}{
		"of a serial port":   {sysfs.Device{Interfaces: []sysfs.Interface{{Class: sysfs.Class{Class: 2}}}}, Block{}, true},
		"with a disk":        {sysfs.Device{Nodes: []sysfs.Node{sda}}, Block{}, false},
		"without a driver":   {sysfs.Device{Interfaces: []sysfs.Interface{{Class: disk}}}, Block{}, false},
		"in another setting": {sysfs.Device{Settings: []sysfs.Class{disk}}, Block{}, false},
		"if listed":          {sysfs.Device{Nodes: []sysfs.Node{sda}}, Block{Nodes: []string{"usb?"}}, true},
		"for libusb":         {sysfs.Device{Nodes: []sysfs.Node{sda}}, Block{Libusb: &yes}, true},
		"without libusb":     {sysfs.Device{Nodes: []sysfs.Node{sda}}, Block{Libusb: &no}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.device.Nodes = append([]sysfs.Node{usb}, c.device.Nodes...)
			got := (&Parsed{Block: c.block}).Choose(c.device)
			test.Eq(t, c.want, len(got) == 1, test.Sprintf("got %+v", got))
		})
	}
}

// The names do not change when a node of another kind appears or disappears.
func TestNodes_WithoutAKindHaveTheKernelsNames(t *testing.T) {
	node := func(path string) sysfs.Node { return sysfs.Node{Kind: sysfs.Other, Path: path, Interface: 0} }
	receiver := []sysfs.Node{
		node("dev/dvb/adapter0/demux0"), node("dev/dvb/adapter0/dvr0"), node("dev/dvb/adapter0/frontend0"),
		node("dev/dvb/adapter0/frontend1"), node("dev/iio:device3"), node("dev/lirc1"), node("dev/cdc-wdm0"), node("dev/7"),
		node("dev/usb2"),
	}
	for _, nodes := range [][]sysfs.Node{receiver, append([]sysfs.Node{node("dev/dvb/adapter0/ca0")}, receiver...)} {
		b := &Parsed{Block: Block{Nodes: []string{"other"}, Names: map[string]string{}}}
		got := map[string]string{}
		for _, n := range b.Choose(sysfs.Device{Nodes: nodes}) {
			got[n.Name] = n.Path
			b.Names[n.Name] = "/dev/x"
		}
		delete(got, "ca")
		test.Eq(t, map[string]string{
			"demux": "dev/dvb/adapter0/demux0", "dvr": "dev/dvb/adapter0/dvr0", "frontend": "dev/dvb/adapter0/frontend0",
			"frontend-2": "dev/dvb/adapter0/frontend1", "iio": "dev/iio:device3", "lirc": "dev/lirc1",
			"cdc-wdm": "dev/cdc-wdm0", "other": "dev/7", "other-2": "dev/usb2",
		}, got)
		test.NoError(t, b.checkNames(map[string]bool{"other": true}))
		test.Error(t, b.checkNames(nil))
	}
}

func TestNodes_NamesCanBeConfigured(t *testing.T) {
	var all []string
	for _, kind := range sysfs.Kinds {
		all = append(all, string(kind))
	}
	for _, n := range (&Parsed{Block: Block{Nodes: all}}).Choose(webcam) {
		test.NoError(t, Block{Names: map[string]string{n.Name: "/dev/x"}}.checkNames(nil))
	}
}

func TestNodes_MustBeListedInTheBlockOfADisk(t *testing.T) {
	disk := sysfs.Device{Nodes: []sysfs.Node{{Kind: sysfs.USB}, {Kind: sysfs.Storage}}}
	usb := true
	for want, blocks := range map[string][]Block{
		`it is a disk: list the nodes that tasks get, such as nodes = ["storage"]`: {{}},
		"": {{Nodes: []string{"storage"}}, {Nodes: []string{"tty?"}}, {Libusb: &usb}, {Mounts: []Mount{{HostPath: "/mnt"}}}},
	} {
		for _, b := range blocks {
			test.Eq(t, want, (&Parsed{Block: b}).Missing(disk))
		}
	}
}

func TestNodes_MissingNodeIsExplained(t *testing.T) {
	for want, d := range map[string]sysfs.Device{
		"no tty: no driver is bound to " +
			"interface 0": {Interfaces: []sysfs.Interface{{Number: 0}, {Number: 1,
			Driver: "usbhid"}}},
		"no tty: no driver is bound to interfaces " +
			"0, 1": {Interfaces: []sysfs.Interface{{Number: 0}, {Number: 1}}},
		"no tty: its driver usbhid has made no such " +
			"node": {Interfaces: []sysfs.Interface{{Driver: "usbhid"}, {Number: 1,
			Driver: "usbhid"}}},
		"no tty: its drivers usbfs, usbhid have made no such " +
			"node": {Interfaces: []sysfs.Interface{{Driver: "usbfs"}, {Number: 1, Driver: "usbhid"}}},
		"no tty: it has no interface (it may be unconfigured or unauthorized)": {},
		"": {Nodes: []sysfs.Node{{Kind: sysfs.TTY}}},
	} {
		test.Eq(t, want, (&Parsed{Block: Block{Nodes: []string{"usb?", "tty"}}}).Missing(d))
	}
}
