// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-device-usb gives USB devices to tasks of Nomad, by name.
package main

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/plugins/usb/simulate"
	"github.com/outrider-dev/outrider/plugins/usb/uevent"
)

// settle is how long drivers take to make the nodes of a device. Most need less than half
// of it.
const settle = 300 * time.Millisecond

var usb = device.Plugin[Config]{
	Name:     "usb",
	Summary:  "gives USB devices to tasks, by name",
	New:      newInstance,
	Commands: []plugin.Command{listCommand, checkCommand, simulate.Command()},
}

func newInstance(c Config, logger hclog.Logger) (device.Instance, error) {
	p, err := newPlan(c)
	if err != nil {
		return nil, err
	}
	return newInventory(p, logger), nil
}

// Options is part of device.Tuned.
func (v *inventory) Options() device.Options {
	return device.Options{Period: v.Rescan.Duration(), Settle: settle, Grace: v.Grace.Duration()}
}

// Events is part of device.EventSource.
func (v *inventory) Events(ctx context.Context, kick func()) error {
	return uevent.Listen(ctx, uevent.Handler{Removed: v.removed, Added: v.added, Missed: v.missed, Kick: kick})
}

func main() { device.Main(usb) }
