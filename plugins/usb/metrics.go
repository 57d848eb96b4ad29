// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/usb/match"
)

var statsCommand = plugin.Command{
	Name: "stats",
	Help: "print statistics of what is plugged in, for Prometheus",
	Run: func(_ context.Context, args []string) error {
		args, err := plugin.Usage{
			Binary: pluginName, Command: "stats", Arguments: "[CONFIG]", Most: 1,
			About: "Prints statistics of the devices that are plugged in, in Prometheus's text format. With CONFIG,\n" +
				"as for check, it prints those that the configuration publishes, with their types.",
		}.Parse(flag.NewFlagSet("stats", flag.ContinueOnError), args, os.Stdout)
		if err != nil {
			return err
		}
		config := schema.Of[Config]().Default()
		config.MatchAll = true
		if len(args) == 1 {
			if config, err = loadConfig(args[0]); err != nil {
				return err
			}
		}
		return printMetrics(os.Stdout, config)
	},
}

// metric is a statistic in Prometheus's text format, 0.0.4, in its base units.
type metric struct {
	name, kind, help string
	of               string  // the statistic
	times            float64 // the factor to its base unit
}

var metrics = []metric{
	{"usb_device_transfers_total", "counter", "Requests to the device since it was plugged in.", "Transfers", 1},
	{"usb_device_connected_seconds_total", "counter", "How long the device has been plugged in.", "Time plugged in", 1e-3},
	{"usb_device_active_seconds_total", "counter", "How long the device has not been suspended.", "Time active", 1e-3},
	{"usb_device_max_power_amperes", "gauge", "What the device may draw.", "Maximum power", 1e-3},
	{"usb_device_speed_bits_per_second", "gauge", "The speed of the connection.", "Speed", 1e6},
	{"usb_device_suspended", "gauge", "Whether the device is suspended.", "Power state", 1},
}

// printMetrics prints the statistics of each device that a configuration publishes. It wakes
// no device.
func printMetrics(w io.Writer, config Config) error {
	p, err := newPlan(config)
	if err != nil {
		return err
	}
	assigned, tree, done, err := p.assign()
	if err != nil {
		return err
	}
	defer done()
	assigned = slices.DeleteFunc(assigned, func(a match.Assigned) bool { return !a.Published() })
	var b strings.Builder
	fmt.Fprint(&b, "# HELP usb_device_info A device that is plugged in.\n# TYPE usb_device_info gauge\n")
	stats := make([]map[string]*structs.StatValue, len(assigned))
	for i, a := range assigned {
		d := a.Device
		stats[i] = measure(&usbDevice{Device: d}, tree).Stats.Attributes
		fmt.Fprintf(&b, "usb_device_info{%s} 1\n", labels("id", a.ID, "type", a.Type, "usb_id", a.As.String(),
			"vendor", d.Manufacturer, "product", d.Product, "serial", d.Serial, "port", d.Name))
	}
	for _, m := range metrics {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", m.name, m.help, m.kind)
		for i, a := range assigned {
			var value float64
			switch v := stats[i][m.of]; {
			case v == nil:
				continue
			case v.IntNumeratorVal != nil:
				value = float64(*v.IntNumeratorVal)
			case v.FloatNumeratorVal != nil:
				value = *v.FloatNumeratorVal
			case *v.StringVal == "suspended":
				value = 1
			}
			fmt.Fprintf(&b, "%s{%s} %g\n", m.name, labels("id", a.ID, "type", a.Type), value*m.times)
		}
	}
	_, err = io.WriteString(w, b.String())
	return err
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// labels takes names and values in turn.
func labels(pairs ...string) string {
	var all []string
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, pair[0]+`="`+escape.Replace(pair[1])+`"`)
	}
	return strings.Join(all, ",")
}
