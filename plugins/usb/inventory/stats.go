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

// idle is the time between measurements of a device that no task seems to have.
const idle = time.Minute

// measurement is the last one of a device since it was plugged in.
type measurement struct {
	*nomad.DeviceStats
	busy bool // the device was used since the measurement before
}

// Stats is part of device.StatsReporter. It does not wake devices. At each interval, mostly
// a second, it reads the devices that were reserved since the plugin started, and those
// that are in use, as after a restart of the plugin. It reads the others less often.
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
		if m, there := measured[p]; there { // of another share of it
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
		s := cmp.Or(now.byID[id], now.was[id])
		switch {
		case s == nil:
			no := false
			all[id] = &nomad.DeviceStats{Stats: &structs.StatObject{Attributes: map[string]*structs.StatValue{
				"Plugged in": {BoolVal: &no, Desc: "Whether the device is there"},
			}}}
		default:
			all[id] = read(s, v.isReserved(s))
		}
	}
	v.measured = measured
	return all, nil
}

// transfers is -1 where the kernel does not count them.
func transfers(s *nomad.DeviceStats) int64 {
	if v := s.Stats.Attributes["Transfers"]; v != nil {
		return *v.IntNumeratorVal
	}
	return -1
}

// measure reads Documentation/ABI/stable/sysfs-bus-usb and testing/sysfs-devices-power
// of the kernel.
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
	stats["Plugged in"] = &structs.StatValue{BoolVal: &there, Desc: "Whether the device is there"}
	stats["Re-plugs"] = &structs.StatValue{IntNumeratorVal: &replugs, Desc: "How often it was plugged in again while " +
		"the plugin ran"}
	stats["Maximum power"] = &structs.StatValue{IntNumeratorVal: &power, Unit: "mA", Desc: "What the device may draw"}
	if speed, err := strconv.ParseFloat(s.Speed, 64); err == nil {
		stats["Speed"] = &structs.StatValue{FloatNumeratorVal: &speed, Unit: "Mbit/s", Desc: "Of the connection"}
	}
	if status, ok := read("power/runtime_status"); ok {
		stats["Power state"] = &structs.StatValue{StringVal: &status, Desc: "Whether the device is active or suspended"}
	}
	return &nomad.DeviceStats{Summary: stats["Transfers"], Stats: &structs.StatObject{Attributes: stats},
		Timestamp: time.Now()}
}
