package match

import (
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// AnyType is the type of the devices that only match_all publishes.
const AnyType = "usb"

// Rules are a configuration's blocks, ready to be asked. They don't change and
// may be asked from several goroutines.
type Rules struct {
}

// Compile reads the blocks' and the excludes' patterns, by name. With all, what no
// block matches is of AnyType.
func Compile(blocks, exclude map[string]Match, all bool) (*Rules, error) {
	panic("to come")
}

// Assigned is what is to be done with a device.
type Assigned struct {
	Device sysfs.Device
	ID     string // as published, see IDs

	// Type is the name of the block that it belongs to, the first in the order of
	// names that matches it, or AnyType; empty where it is not published.
	Type string

	// Also are the further blocks that match it, in order: a mistake, mostly, since
	// they don't get it.
	Also []string

	// Excluded is the exclude, the first in the order of names, for which it is not
	// published. Type and Also say then what would be without.
	Excluded string
}

// Published says whether a job can ask for it.
func (a Assigned) Published() bool { return a.Type != "" && a.Excluded == "" }

// Assign says of every device what is to be done with it, in the order of the
// devices.
func (r *Rules) Assign(devices []sysfs.Device, ids *IDs) []Assigned {
	panic("to come")
}
