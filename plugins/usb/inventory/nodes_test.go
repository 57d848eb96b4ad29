// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"testing"

	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/plugins/usb/config"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

func TestNodes_ForSoundAndInputAreAlsoAtKernelPaths(t *testing.T) {
	b := &config.Parsed{Block: config.Block{Names: map[string]string{"sound": "/dev/microphone"}}}
	s := &usbDevice{block: b, Device: sysfs.Device{Nodes: []sysfs.Node{
		{Kind: sysfs.USB, Path: "dev/bus/usb/001/009"}, {Kind: sysfs.Video, Path: "dev/video0"},
		{Kind: sysfs.Sound, Path: "dev/snd/pcmC1D0c"}, {Kind: sysfs.Input, Path: "dev/input/event7"},
		{Kind: sysfs.Other, Path: "dev/dvb/adapter0/frontend0"},
	}}}
	got := map[string][]string{}
	for _, n := range b.Choose(s.Device) {
		got[n.Name] = s.furtherPaths(n, 1, nil)
	}
	test.Eq(t, map[string][]string{
		"usb": nil, "video": nil, "sound": {"/dev/microphone", "/dev/snd/pcmC1D0c"}, "input": {"/dev/input/event7"},
		"frontend": {"/dev/dvb/adapter0/frontend0"},
	}, got)
}
