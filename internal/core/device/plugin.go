// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package device implements Nomad's device plugin contract
// (plugins/device/device.go, device.DevicePlugin) once, for every device plugin.
// A plugin supplies an Instance, which lists devices and returns what a task gets of them,
// and may have optional methods. This package supplies the rest: streams that never end, the
// grace period of a device that is plugged in again, the checks of what is listed and
// reserved, and a fixed order.
package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"
)

// Plugin is what distinguishes one device plugin from another. C is its
// configuration, the agent's plugin block.
type Plugin[C any] struct {
	// Name is the plugin's name in the agent's log.
	Name string

	// Summary is one sentence about its purpose.
	Summary string

	// New makes an instance of a configuration, or refuses the configuration. It must
	// not touch the machine or look at it: Nomad also configures plugins only to
	// validate the configuration, and does not start after an error. The logger is the
	// instance's.
	New func(config C, logger hclog.Logger) (Instance, error)

	// Commands are the binary's subcommands for operators, such as "nomad-device-usb list".
	Commands []plugin.Command

	// Roles are other programs in the same binary, see plugin.Plugin.
	Roles []func() bool
}

// Main is the whole main function of a device plugin.
func Main[C any](p Plugin[C]) {
	config := schema.Of[C]()
	plugin.Serve(plugin.Plugin{
		Name: p.Name, Summary: p.Summary, Config: config, Commands: p.Commands, Roles: p.Roles,
		Device: func(ctx context.Context, logger hclog.Logger) device.DevicePlugin { return New(ctx, logger, p) },
	})
}

// Instance is a plugin with its configuration. The interfaces EventSource,
// StatsReporter, Releaser and Tuned are optional: an instance that has their
// methods implements them.
type Instance interface {
	// List returns every device that is there now, in any order, and a group in as
	// many parts as is convenient. It is called by one goroutine at a time and must
	// return soon after its context ends. After an error or a panic the last list
	// remains valid, and List is called again, with increasing delays. The error does
	// not reach Nomad, which would drop the plugin permanently
	// (client/devicemanager/instance.go, fingerprint). What Nomad would refuse is left
	// out and logged.
	List(ctx context.Context) ([]Group, error)

	// Reserve returns what a task gets. Each id is from the last List, was healthy
	// then, and occurs once. Nomad calls it once for each device block of an
	// allocation's task, and not when the task is restarted
	// (client/allocrunner/taskrunner, device_hook.go): the answer must stay valid when
	// the device is plugged in again. It may be called by several goroutines. An error
	// fails the allocation with this text, unless it wraps ErrVanished. The core adds an
	// environment variable from which drivers can restore the devices and mounts
	// (package reservation).
	Reserve(ctx context.Context, ids []string) (*device.ContainerReservation, error)
}

// Group is a set of interchangeable devices. A job asks for one as device
// "<vendor>/<type>/<name>", device "<type>" and so on.
type Group struct {
	Vendor, Type, Name string // none empty; no slash in Vendor and Type

	// Attributes are what constraints compare, and what tells the nodes of a
	// cluster apart for the scheduler (structs.Node.ComputeClass). The core adds
	// "ids", the ids of the healthy devices, separated by commas.
	Attributes map[string]*structs.Attribute

	Devices []Device
}

// Device is one of a group.
type Device struct {
	// ID stays the same when the device is plugged in again and when the host
	// restarts. It is unique among all groups, since Reserve gets nothing else. It must
	// not read as a number or truth value (set_contains never matches one) and has no
	// comma.
	ID string

	// Problem is the reason why no task can use the device now, in words for the
	// operator; empty means healthy. The core moves the device to a group of its own,
	// "<name> (unhealthy)".
	Problem string

	// PCIBusID is the PCI address ("0000:00:14.0") that NUMA placement asks for,
	// empty where there is none.
	PCIBusID string
}

// ErrVanished is wrapped by the error of a Reserve that finds that a device has gone
// since the last List. The core lists again, waits for the device as it does for one
// that List did not find, and calls Reserve again. The refused Reserve must retain
// nothing.
var ErrVanished = errors.New("it has gone since the last look")

// EventSource is an instance that learns of changes by itself.
type EventSource interface {
	// Events calls kick whenever a device may have come, gone or changed, until ctx
	// ends. The first kick is when it has begun to listen, since earlier changes were
	// missed. After an error it is called again, with increasing delays.
	Events(ctx context.Context, kick func()) error
}

// StatsReporter is an instance that measures its devices.
type StatsReporter interface {
	// Stats measures these devices, unhealthy ones included. A device that is missing
	// from the answer is left out. Summary, Stats and Timestamp may be empty.
	Stats(ctx context.Context, ids []string) (map[string]*device.DeviceStats, error)
}

// Tuned is an instance that does not use DefaultOptions.
type Tuned interface {
	// Options is called once for each instance.
	Options() Options
}

// Options control how the core treats an instance.
type Options struct {
	// Period is the time between lists without an event, at least 50 ms.
	Period time.Duration

	// Settle is the time after an event during which further ones are collected.
	Settle time.Duration

	// Grace is how long a device that has vanished stays listed, as unhealthy, and
	// how long Reserve waits for it to come back, or to be out of use (ErrInUse), though
	// never above half a minute.
	Grace time.Duration

	// MountsInEnvironment leaves mounts out of the answer to Nomad, so that they are in
	// the environment alone, where drivers on this core find them and others do not.
	// Nomad replaces the mounts of a task's volumes by those of its devices at the
	// task's first start (client/allocrunner/taskrunner, setMounts).
	MountsInEnvironment bool
}

// DefaultOptions are those of an instance that is not Tuned.
func DefaultOptions() Options {
	return Options{Period: 5 * time.Second, Settle: 300 * time.Millisecond, Grace: 10 * time.Second}
}

// minPeriod keeps a mistyped period from becoming a busy loop.
const minPeriod = 50 * time.Millisecond

func (o Options) check() error {
	switch {
	case o.Period < minPeriod:
		return fmt.Errorf("the time between scans is %s: use %s or more", o.Period, minPeriod)
	case o.Settle < 0 || o.Grace < 0:
		return fmt.Errorf("settle time %s or grace %s is negative: use 0s or more", o.Settle, o.Grace)
	}
	return nil
}
