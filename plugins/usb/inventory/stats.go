// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"cmp"
	"context"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// idle is the time between measurements of a device that seems unused.
const idle = time.Minute

// measurement is the last measurement of one connection of a device.
type measurement struct {
	*nomad.DeviceStats
	busy bool // the device was used since the previous measurement
}

// Stats implements device.StatsReporter. At each call, by default every second, it measures the devices that were
// reserved since the plugin started. It also measures the devices in use, which may have been reserved before a restart
// of the plugin. It measures other devices once per minute (idle). A measurement does not wake the device.
func (v *inventory) Stats(_ context.Context, ids []string) (map[string]*nomad.DeviceStats, error) {
	now := v.last.Load()
	tree, done, err := v.open()
	if err != nil {
		return nil, err
	}
	defer done()
	v.measuring.Lock()
	defer v.measuring.Unlock()
	measured := map[plug]measurement{}
	read := func(s *usbDevice, reserved bool) *nomad.DeviceStats {
		p := plugOf(s.Device)
		if m, there := measured[p]; there { // already measured, for another share
			return m.DeviceStats
		}
		m := v.measured[p]
		if m.DeviceStats == nil || m.busy || reserved || time.Since(m.Timestamp) >= v.idle {
			last := m.DeviceStats
			m.DeviceStats = measure(s, tree)
			m.busy = last != nil && transfers(last) != transfers(m.DeviceStats)
		}
		measured[p] = m
		return m.DeviceStats
	}
	all := map[string]*nomad.DeviceStats{}
	for _, id := range ids {
		s := cmp.Or(now.byID[id], now.byOldID[id])
		if s != nil {
			all[id] = read(s, v.isReserved(s))
		} else {
			all[id] = &nomad.DeviceStats{Stats: &structs.StatObject{Attributes: map[string]*structs.StatValue{
				"Plugged in": {BoolVal: new(false), Desc: "Whether the device is plugged in"},
			}}}
		}
	}
	v.measured = measured
	return all, nil
}

// transfers returns the number of transfers, or -1 if the kernel does not count them.
func transfers(s *nomad.DeviceStats) int64 {
	if v := s.Stats.Attributes["Transfers"]; v != nil {
		return *v.IntNumeratorVal
	}
	return -1
}

// measure reads the device's statistics, as documented in the kernel's Documentation/ABI/stable/sysfs-bus-usb and
// testing/sysfs-devices-power.
func measure(s *usbDevice, root fs.FS) *nomad.DeviceStats {
	read := func(name string) (string, bool) {
		b, err := fs.ReadFile(root, path.Join("sys/bus/usb/devices", s.Name, name))
		return strings.TrimSpace(string(b)), err == nil
	}
	stats := map[string]*structs.StatValue{}
	number := func(name, file, unit, desc string) {
		if text, ok := read(file); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				stats[name] = &structs.StatValue{IntNumeratorVal: &n, Unit: unit, Desc: desc}
			}
		}
	}
	number("Transfers", "urbnum", "URBs", "Requests to the device since it was plugged in")
	number("Time plugged in", "power/connected_duration", "ms", "How long the device has been plugged in")
	number("Time active", "power/active_duration", "ms", "How long the device has not been suspended")

	_, there := read("devnum")
	replugs, power := int64(s.replugs), int64(s.MaxPower)
	stats["Plugged in"] = &structs.StatValue{BoolVal: &there, Desc: "Whether the device is plugged in"}
	stats["Re-plugs"] = &structs.StatValue{IntNumeratorVal: &replugs, Desc: "How often it was plugged in again while " +
		"the plugin ran"}
	stats["Maximum power"] = &structs.StatValue{IntNumeratorVal: &power, Unit: "mA", Desc: "Maximum current of the device"}
	if speed, err := strconv.ParseFloat(s.Speed, 64); err == nil {
		stats["Speed"] = &structs.StatValue{FloatNumeratorVal: &speed, Unit: "Mbit/s", Desc: "Speed of the connection"}
	}
	if status, ok := read("power/runtime_status"); ok {
		stats["Power state"] = &structs.StatValue{StringVal: &status, Desc: "Whether the device is active or suspended"}
	}
	return &nomad.DeviceStats{Summary: stats["Transfers"], Stats: &structs.StatObject{Attributes: stats},
		Timestamp: time.Now()}
}
