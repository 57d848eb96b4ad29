// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"reflect"
	"testing"
	"testing/fstest"
)

func TestScan_ReadsTheClassesOfEveryConfiguration(t *testing.T) {
	// the descriptors of a modem that is a disk until it is switched to its second configuration
	whole := []byte{
		18, 1, 0, 2, 0, 0, 0, 64, 0xd1, 0x12, 0x06, 0x15, 2, 1, 1, 2, 0, 2,
		9, 2, 25, 0, 1, 1, 0, 0xc0, 50,
		9, 4, 0, 0, 1, 8, 6, 0x50, 0,
		7, 5, 0x81, 2, 0, 2, 0,
		9, 2, 45, 0, 1, 2, 0, 0xc0, 50,
		9, 4, 0, 0, 0, 2, 6, 0, 0,
		9, 4, 0, 1, 0, 0xff, 2, 1, 0,
		9, 4, 1, 0, 0, 0xff, 2, 1, 0,
	}
	for name, test := range map[string]struct {
		descriptors []byte
		want        []Class
	}{
		"two configurations and two settings":    {whole, []Class{{2, 6, 0}, {8, 6, 0x50}, {0xff, 2, 1}}},
		"cut short":                              {whole[:45], []Class{{8, 6, 0x50}}},
		"with a descriptor of no length":         {append([]byte{9, 4, 0, 0, 0, 3, 1, 2, 0}, 0, 0, 9, 4), []Class{{3, 1, 2}}},
		"with an interface descriptor too short": {[]byte{5, 4, 0, 0, 0, 9, 4, 0, 0, 0, 3, 1, 2, 0}, []Class{{3, 1, 2}}},
		"none":                                   {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, xhci, cp2102(pc+"/usb1/1-1", 1, 2, "ttyUSB0", ""))
			root[pc+"/usb1/1-1/descriptors"] = &fstest.MapFile{Data: test.descriptors}
			got, err := Scan(root)
			if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0].Settings, test.want) {
				t.Errorf("got %v, %v, want %v", got, err, test.want)
			}
		})
	}
}
