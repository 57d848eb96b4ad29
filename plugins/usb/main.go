// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-device-usb provides USB devices to Nomad tasks, by name.
package main

import (
	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/plugins/usb/command"
	"github.com/outrider-dev/outrider/plugins/usb/config"
	"github.com/outrider-dev/outrider/plugins/usb/inventory"
)

var usb = device.Plugin[config.Config]{
	Name:     "usb",
	Summary:  "gives USB devices to tasks, by name",
	New:      inventory.New,
	Commands: []plugin.Command{command.List, command.Check},
}

func main() { device.Main(usb) }
