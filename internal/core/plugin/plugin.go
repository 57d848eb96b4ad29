// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package plugin is the outermost layer of a plugin's binary: it serves a driver or a device plugin
// to a Nomad agent, ends the process with the agent that started it, and runs the binary's commands
// in a terminal.
package plugin

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// Plugin describes a plugin's binary. Exactly one of Driver and Device is set.
type Plugin struct {
	// Name is the name that the plugin reports. Jobs write driver = "<name>" or device "<name>".
	Name string

	// Summary describes the plugin in one sentence.
	Summary string

	// Config are the options of the agent's plugin block.
	Config schema.Described

	// TaskConfig are the options of a task's config block; nil for a device plugin.
	TaskConfig schema.Described

	// Driver and Device create the implementation. Nomad starts the process about three times only to
	// inspect it, so the implementation must not affect the machine before SetConfig passes an agent's
	// configuration. ctx ends when serving ends. If the implementation has a method Close() error, Close
	// is then called, and may take closeTime. Tasks must keep running after the end of ctx and after Close.
	Driver func(context.Context, hclog.Logger) drivers.DriverPlugin
	Device func(context.Context, hclog.Logger) device.DevicePlugin

	// Roles are other programs in the same binary, such as the supervisor. Each is called before
	// anything else. It returns true if this process had that role and the role's work is done.
	Roles []func() bool

	// Commands are subcommands for a terminal, such as nomad-device-usb list.
	Commands []Command
}

// Command is a subcommand of the binary, in addition to config, version, options and help.
type Command struct {
	Name string
	Help string // half a line

	// Run gets the arguments after the name. An error other than flag.ErrHelp is printed, and the exit
	// code is 1.
	Run func(ctx context.Context, args []string) error

	// Undoes is set for a command that cleans up at its end: the first SIGINT, SIGTERM or SIGHUP cancels its
	// context, and a second one ends the process. Any other command ends at the first signal.
	Undoes bool
}

// Info returns the result of PluginInfo for a plugin of a type (base.PluginTypeDriver) with this API and name.
func Info(kind, api, name string) *base.PluginInfoResponse {
	return &base.PluginInfoResponse{
		Type: kind, PluginApiVersions: []string{api}, PluginVersion: Version(), Name: name,
	}
}
