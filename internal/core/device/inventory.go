// Package device is the one implementation of Nomad's device plugin contract
// (plugins/device/device.go, device.DevicePlugin). A plugin supplies an
// Inventory: what is there; a Reserver: what a task gets of it; and, where it can,
// a Meter and a Lessor. The streams that never end, the grace for what is plugged
// in again, the checks of what is reserved, and the order of everything are here,
// the same for all.
package device

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// Inventory enumerates. It knows nothing of who has what.
type Inventory interface {
	// Scan lists every device that is there now, in any order, and groups of one
	// name as often as it likes. It is called from one goroutine at a time and must
	// return soon after its context ends. An error or a panic leaves the last list
	// standing and is tried again, more and more slowly; it never reaches Nomad, which
	// would drop the plugin for good (client/devicemanager/instance.go, fingerprint).
	// What Nomad would refuse is left out, with a line in the log.
	Scan(context.Context) ([]Group, error)
}

// Group are devices of which any is as good as another: what a job asks for as
// device "<vendor>/<type>/<name>", device "<type>" and so on.
type Group struct {
	Vendor, Type, Name string // none empty; no slash in Vendor and Type

	// Attributes are what constraints compare, and what tells the nodes of a
	// cluster apart for the scheduler (structs.Node.ComputeClass). The core adds
	// "ids", the healthy devices' ids with commas between, where there is one.
	Attributes map[string]*structs.Attribute

	Devices []Device
}

// Device is one of a group.
type Device struct {
	// ID is the same after a re-plug and a restart of the host, and that of one device
	// in all groups, since Reserve is told nothing else. It must not read as a number
	// or truth value (set_contains never finds one) and has no comma.
	ID string

	// Problem says why no task can use it now, in words for the operator; empty is
	// healthy. The core puts it into a group of its own, "<name> (unhealthy)".
	Problem string

	// PCIBusID is the PCI address ("0000:00:14.0") that NUMA placement asks for,
	// empty where there is none.
	PCIBusID string
}

// ErrVanished is what a Reserver's error wraps if it finds that a device has gone
// since the last Scan: the core scans again, waits as for one that the Scan missed, and
// asks the Reserver again, which keeps nothing of what it refused so.
var ErrVanished = errors.New("it has gone since the last look")

// Reserver gives devices to tasks.
type Reserver interface {
	// Reserve says what a task gets. Each id is of the last Scan, healthy then, and
	// given once. Nomad calls it once for each device block of an allocation's task,
	// not again when the task is restarted (client/allocrunner/taskrunner,
	// device_hook.go): what is given must stay right over a re-plug. It may be called
	// from several goroutines. An error that is no ErrVanished fails the allocation, in
	// these words. The core adds a variable with the devices and mounts to the environment of the answer,
	// for drivers to find them again (package reservation).
	Reserve(ctx context.Context, ids []string) (*device.ContainerReservation, error)
}

// Meter measures. It is optional.
type Meter interface {
	// Stats measures these devices, unhealthy ones among them; one that is missing
	// from the answer is left out. Summary, Stats and Timestamp may be left empty.
	Stats(ctx context.Context, ids []string) (map[string]*device.DeviceStats, error)
}

// Lessor is a Reserver that must know when a device is free again. It is
// optional. Nomad never says so (its contract has Reserve and no release): the core
// releases what is reserved a second time, since Nomad gives nothing away that is
// still in use, and what its holder has left for good. Its methods are called one at
// a time.
type Lessor interface {
	Reserver

	// Leases lists who holds what, from a record that outlives this process (such
	// as a property of the device itself).
	Leases(context.Context) ([]Lease, error)

	// Release takes a device back. It is idempotent: it is also called for what
	// nobody holds, before each Reserve, and after one that failed.
	Release(ctx context.Context, id string) error
}

// Lease is a device that somebody has.
type Lease struct {
	ID    string
	Since time.Time

	// Left: its holder has been seen to be gone for good.
	Left bool
}

// Supply is what a configuration amounts to.
type Supply struct {
	Inventory Inventory
	Reserver  Reserver // may be a Lessor
	Meter     Meter    // may be nil

	// Events calls kick whenever a scan is worth while, until ctx ends; the first
	// time when it has begun to listen, since nobody heard what came before. It is
	// called again, later and later, after an error. It may be nil.
	Events func(ctx context.Context, kick func()) error

	// Period is the time between scans without a kick, at least 50 ms.
	Period time.Duration

	// Settle is how long after a kick further ones are waited for.
	Settle time.Duration

	// Grace is how long a device that has vanished stays listed, as unhealthy, and
	// how long Reserve waits for it to come back, though never above half a minute.
	Grace time.Duration

	// Disabled publishes nothing and never scans.
	Disabled bool
}
