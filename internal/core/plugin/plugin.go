// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package plugin is the outermost layer of a plugin's binary. It serves a driver or a device plugin to a Nomad agent,
// ends the process when that agent has ended, and runs the binary's commands for a user in a terminal.
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

	// Driver or Device creates the implementation. Nomad starts the process about three times only to inspect it, so
	// the implementation must not change the machine until SetConfig is called with an agent's configuration. ctx ends
	// when serving ends. If the implementation is an io.Closer, Close is called next, and may take closeTime. Neither
	// event may end tasks.
	Driver func(context.Context, hclog.Logger) drivers.DriverPlugin
	Device func(context.Context, hclog.Logger) device.DevicePlugin

	// Roles are other programs in the same binary, such as the supervisor. Serve calls each of them before it does
	// anything else. A role returns true if this process was started for it, once the role's work is done.
	Roles []func() bool

	// Commands are subcommands for a terminal, such as nomad-device-usb list.
	Commands []Command
}

// Command is a subcommand of the binary, in addition to config, version, options and help.
type Command struct {
	Name string
	Help string // half a line, for the list of commands

	// Run gets the arguments after the command's name. If it returns an error other than flag.ErrHelp, the error is
	// printed and the exit code is 1.
	Run func(ctx context.Context, args []string) error

	// Undoes is true for a command that cleans up before it ends. The first SIGINT, SIGTERM or SIGHUP then cancels the
	// context of Run, and a second one ends the process. Other commands end at the first signal.
	Undoes bool
}

// Info returns a plugin's answer to PluginInfo: its type (such as base.PluginTypeDriver), API version and name.
func Info(kind, api, name string) *base.PluginInfoResponse {
	return &base.PluginInfoResponse{
		Type: kind, PluginApiVersions: []string{api}, PluginVersion: Version(), Name: name,
	}
}
