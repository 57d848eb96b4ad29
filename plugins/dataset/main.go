// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-device-dataset provides ZFS datasets to Nomad tasks: scratch, in its role as a device plugin, and
// persistent volumes, in its role as a dynamic host volume plugin.
package main

import (
	"github.com/outrider-dev/outrider/internal/core/device"

	"github.com/outrider-dev/outrider/plugins/dataset/command"
	"github.com/outrider-dev/outrider/plugins/dataset/slot"
	"github.com/outrider-dev/outrider/plugins/dataset/volume"
)

var dataset = device.Plugin[slot.Config]{
	Name:    "dataset",
	Summary: "gives ZFS datasets to tasks, as volumes that last and as scratch",
	New:     slot.New,
	Roles:   []func() bool{volume.Role},

	Commands: command.All(),
}

func main() { device.Main(dataset) }
