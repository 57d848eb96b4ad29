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

// settle is how long a device takes until its drivers have made their nodes: most
// need less than half of it.
const settle = 300 * time.Millisecond

var kind = device.Kind[Config]{
	Name:      "usb",
	Summary:   "gives USB devices to tasks, by name",
	Configure: configure,
	Commands:  []plugin.Command{listCommand, checkCommand, statsCommand, simulate.Command()},
}

func configure(c Config, logger hclog.Logger) (device.Supply, error) {
	p, err := newPlan(c)
	if err != nil {
		return device.Supply{}, err
	}
	v := newInventory(p, logger)
	listen := func(ctx context.Context, kick func()) error {
		return uevent.Listen(ctx, uevent.Hearer{Removed: v.removed, Added: v.added, Missed: v.missed, Kick: kick})
	}
	return device.Supply{
		Inventory: v, Reserver: v, Meter: v,
		Events: listen, Period: c.Rescan.Duration(), Settle: settle, Grace: c.Grace.Duration(),
		Disabled: !c.Enabled,
	}, nil
}

func main() { device.Main(kind) }
