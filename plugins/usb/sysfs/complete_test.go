// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"fmt"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// The tests in this file cover bugs of Nomad's example USB plugin.

func TestScan_ReadsFieldsThatTasksNeed(t *testing.T) {
	devices, err := Scan(tree(t, xhci, cp2102(pc+"/usb1/1-1", 1, 4, "ttyUSB0", "0001")))
	must.NoError(t, err)
	must.SliceLen(t, 1, devices)
	d := devices[0]
	must.Eq(t, 1, d.Bus, must.Sprintf("got %+v", d))
	must.Eq(t, 4, d.Address, must.Sprintf("got %+v", d))
	must.Eq(t, "0001", d.Serial, must.Sprintf("got %+v", d))
	test.Eq(t, "1-1", d.Name, test.Sprintf("got %+v", d))
	test.Eq(t, "dev/bus/usb/001/004 dev/ttyUSB0", fmt.Sprint(d.Nodes[0].Path, " ", d.Nodes[1].Path),
		test.Sprint("its nodes are"))
}

func TestScan_LocalityIsPCIAddress(t *testing.T) {
	for dir, want := range map[string]string{
		pc + "/usb1/1-1": "0000:00:14.0",
		"sys/devices/platform/dummy_hcd.0/usb1/1-1": "", // not on PCI: without NUMA locality
	} {
		devices, err := Scan(tree(t, cp2102(dir, 1, 4, "ttyUSB0", "0001")))
		must.NoError(t, err, must.Sprint(dir))
		must.SliceLen(t, 1, devices, must.Sprint(dir))
		test.Eq(t, want, devices[0].PCIBusID, test.Sprint(dir))
	}
}
