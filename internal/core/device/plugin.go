// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package device implements Nomad's device plugin contract (plugins/device/device.go, device.DevicePlugin) for every
// device plugin. A plugin supplies an Instance, which lists devices and reserves them for tasks, and may implement
// optional interfaces. This package supplies the rest: streams that never end early, a grace period for re-plugged
// devices, checks of listed and reserved devices, and a fixed order of groups and devices.
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

// Plugin defines a device plugin. C is the type of its configuration, which is in the agent's plugin block.
type Plugin[C any] struct {
	// Name is the plugin's name in the agent's log.
	Name string

	// Summary describes the plugin's purpose in one sentence.
	Summary string

	// New creates an instance from a configuration, or returns an error if the configuration is
	// invalid. It must neither change nor read the state of the machine: Nomad also configures plugins
	// only to validate the configuration, and an agent does not start after an error. The logger is for
	// the instance.
	New func(config C, logger hclog.Logger) (Instance, error)

	// Commands are the binary's subcommands for operators, such as "nomad-device-usb list".
	Commands []plugin.Command

	// Roles are other programs in the same binary, see plugin.Plugin.
	Roles []func() bool
}

// Main is the entire main function of a device plugin.
func Main[C any](p Plugin[C]) {
	config := schema.Of[C]()
	plugin.Serve(plugin.Plugin{
		Name: p.Name, Summary: p.Summary, Config: config, Commands: p.Commands, Roles: p.Roles,
		Device: func(ctx context.Context, logger hclog.Logger) device.DevicePlugin { return New(ctx, logger, p) },
	})
}

// Instance is a plugin with its configuration. It may also implement EventSource, StatsReporter,
// Releaser and Tuned. The core detects these interfaces by their methods.
type Instance interface {
	// List returns every device that currently exists, in any order. A group may be split into several parts. List is
	// called by one goroutine at a time and must return soon after ctx ends. After an error or a panic, the last list
	// remains valid, and List is called again, with increasing delays. The error does not reach Nomad, which would drop
	// the plugin permanently (client/devicemanager/instance.go, fingerprint). Groups, attributes and devices that Nomad
	// would refuse are left out and logged.
	List(ctx context.Context) ([]Group, error)

	// Reserve returns the devices, mounts and environment variables for a task. Each id is from the last List, was
	// healthy then, and occurs once. Nomad calls Reserve once for each device block of an allocation's task, but not
	// when the task is restarted (client/allocrunner/taskrunner, device_hook.go). The result must therefore stay valid
	// for restarts of the task, even after the device was plugged in again. Reserve may be called concurrently. An
	// error fails the allocation with the error's text; if the error wraps ErrVanished or ErrInUse, the core first
	// waits and tries again. The core adds an environment variable from which drivers can restore the devices and
	// mounts (package reservation).
	Reserve(ctx context.Context, ids []string) (*device.ContainerReservation, error)
}

// Group is a set of interchangeable devices. A job requests a device of the group with a device block whose label is
// "<vendor>/<type>/<name>", "<type>" and so on.
type Group struct {
	Vendor, Type, Name string // none is empty; Vendor and Type contain no slash

	// Attributes are used by constraints, and by the scheduler to distinguish the nodes of a cluster
	// (structs.Node.ComputeClass). The core adds "ids", the ids of the healthy devices, separated by
	// commas.
	Attributes map[string]*structs.Attribute

	Devices []Device
}

// Device is one device of a Group.
type Device struct {
	// ID stays the same when the device is plugged in again and when the host restarts. It must be unique among all
	// groups, because Reserve gets only ids. It must not contain a comma, and must not parse as a number or boolean,
	// because then no constraint with set_contains on the attribute "ids" could match it.
	ID string

	// Problem is a message for the operator that explains why no task can use the device now. It is empty if the device
	// is healthy. The core moves unhealthy devices to their own group, "<name> (unhealthy)".
	Problem string

	// PCIBusID is the device's PCI address, such as "0000:00:14.0", or empty. Nomad uses it for NUMA placement.
	PCIBusID string
}

// ErrVanished indicates that a device has vanished since the last List. Reserve may wrap it. The core then calls List
// again, waits during the grace period for the device to come back, and calls Reserve again. The failed Reserve must
// leave nothing reserved.
var ErrVanished = errors.New("the device has vanished since the last scan")

// EventSource is an Instance that detects changes of devices between scans.
type EventSource interface {
	// Events calls kick whenever a device may have been added, removed or changed, until ctx ends. It must also call
	// kick once it listens, for the changes that it has missed until then. After an error, Events is called again, with
	// increasing delays.
	Events(ctx context.Context, kick func()) error
}

// StatsReporter is an Instance that measures its devices.
type StatsReporter interface {
	// Stats returns statistics of the devices with these ids, which may be unhealthy. A device that is not in the
	// result has no statistics. The core fills in Summary, Stats and Timestamp of a result if they are empty.
	Stats(ctx context.Context, ids []string) (map[string]*device.DeviceStats, error)
}

// Tuned is an Instance with its own Options instead of DefaultOptions.
type Tuned interface {
	// Options is called once for each instance.
	Options() Options
}

// Options control how the core treats an instance.
type Options struct {
	// Period is the time between two calls of List if no event arrives, at least 50 ms.
	Period time.Duration

	// Settle is how long the core waits after an event before it calls List once for all events in that time.
	Settle time.Duration

	// Grace is how long a device that has vanished stays listed, as unhealthy. Reserve also waits this long, but at
	// most half a minute, for a device that has vanished or is still in use (ErrInUse).
	Grace time.Duration

	// MountsInEnvironment hides the mounts of a reservation from Nomad. They are then only in the environment variable
	// of package reservation, which only drivers on this core read. The reason is that Nomad, at the first start of a
	// task, replaces the mounts of the task's volumes with those of its devices (client/allocrunner/taskrunner,
	// setMounts).
	MountsInEnvironment bool
}

// DefaultOptions returns the options of an instance that is not Tuned.
func DefaultOptions() Options {
	return Options{Period: 5 * time.Second, Settle: 300 * time.Millisecond, Grace: 10 * time.Second}
}

// minPeriod is the minimum of Options.Period. It prevents a busy loop if an operator mistypes the period.
const minPeriod = 50 * time.Millisecond

func (o Options) check() error {
	switch {
	case o.Period < minPeriod:
		return fmt.Errorf("the time between scans is %s: use %s or more", o.Period, minPeriod)
	case o.Settle < 0 || o.Grace < 0:
		return fmt.Errorf("settle time %s or grace time %s is negative: use 0s or more", o.Settle, o.Grace)
	}
	return nil
}
