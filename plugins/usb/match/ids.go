package match

import (
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// IDs names devices by their serial where that tells them apart, and by where they
// are plugged in where it does not:
//
//	10c4:ea60:0001
//	10c4:ea60@pci-0000:00:14.0-usbv2-0:1.4
//
// A serial that two devices were seen to share is of no use from then on, so that
// the one that stays does not change its name again when the other is unplugged;
// IDs remembers it. The zero value knows of none. It is used from one goroutine.
type IDs struct {
}

// Name returns the id of each of the devices, which are all that are plugged in
// now, in their order. No two are equal.
func (ids *IDs) Name(devices []sysfs.Device) []string {
	panic("to come")
}

// Directory is the id as the name of a directory: without a colon, which many
// programs take for the end of a path.
func Directory(id string) string {
	panic("to come")
}
