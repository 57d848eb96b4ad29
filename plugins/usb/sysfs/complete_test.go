package sysfs

import (
	"fmt"
	"testing"
)

// These tests cover mistakes of Nomad's example of a USB plugin.

func TestScan_ReadsAllThatTaskNeeds(t *testing.T) {
	devices, err := Scan(tree(t, xhci, cp2102(pc+"/usb1/1-1", 1, 4, "ttyUSB0", "0001")))
	if err != nil || len(devices) != 1 {
		t.Fatalf("got %v, %v", devices, err)
	}
	d := devices[0]
	if d.Bus != 1 || d.Address != 4 || d.Serial != "0001" || d.Name != "1-1" {
		t.Errorf("got %+v", d)
	}
	if got := fmt.Sprint(d.Nodes[0].Path, " ", d.Nodes[1].Path); got != "dev/bus/usb/001/004 dev/ttyUSB0" {
		t.Errorf("its nodes are %s", got)
	}
}

func TestScan_LocalityIsPCIAddress(t *testing.T) {
	for dir, want := range map[string]string{
		pc + "/usb1/1-1": "0000:00:14.0",
		"sys/devices/platform/dummy_hcd.0/usb1/1-1": "", // numa can't ask for it
	} {
		devices, err := Scan(tree(t, cp2102(dir, 1, 4, "ttyUSB0", "0001")))
		if err != nil || len(devices) != 1 || devices[0].PCIBusID != want {
			t.Errorf("%s: got %+v, %v, want %q", dir, devices, err, want)
		}
	}
}
