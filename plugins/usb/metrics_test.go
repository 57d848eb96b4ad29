// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/shoenig/test"
)

func TestMetrics_ArePrintedForPrometheus(t *testing.T) {
	m := newMachine(t, "")
	m.plug("10c4:ea60", `A"\1`, "1-1")
	m.plug("1a86:7523", "", "1-2") // no block's
	m.plug("0403:6001", "F", "1-3")
	dir := m.root + "/sys/bus/usb/devices/"
	for name, text := range map[string]string{
		"1-1/urbnum": "1234567", "1-1/power/connected_duration": "1500", "1-3/power/runtime_status": "suspended",
		"1-3/speed": "1.5",
	} {
		m.must(os.WriteFile(dir+name, []byte(text+"\n"), 0o644))
	}
	c, err := decode(t, fmt.Sprintf("root = %q\nshadow_dir = %q\ndevice \"a\" { id = \"10c4:ea60\" }\ndevice \"b\" { "+
		"id = \"0403:*\" }", m.root, m.nodes))
	m.must(err)
	var b strings.Builder
	m.must(printMetrics(&b, c))
	want := `# HELP usb_device_info A device that is plugged in.
# TYPE usb_device_info gauge
usb_device_info{id="10c4:ea60:A__1",type="a",usb_id="10c4:ea60",vendor="Silicon Labs",product="CP2102",serial="A\"\\1",port="1-1"} 1
usb_device_info{id="0403:6001:F",type="b",usb_id="0403:6001",vendor="Silicon Labs",product="CP2102",serial="F",port="1-3"} 1
# HELP usb_device_transfers_total Requests to the device since it was plugged in.
# TYPE usb_device_transfers_total counter
usb_device_transfers_total{id="10c4:ea60:A__1",type="a"} 1.234567e+06
usb_device_transfers_total{id="0403:6001:F",type="b"} 0
# HELP usb_device_connected_seconds_total How long the device has been plugged in.
# TYPE usb_device_connected_seconds_total counter
usb_device_connected_seconds_total{id="10c4:ea60:A__1",type="a"} 1.5
# HELP usb_device_active_seconds_total How long the device has not been suspended.
# TYPE usb_device_active_seconds_total counter
# HELP usb_device_max_power_amperes What the device may draw.
# TYPE usb_device_max_power_amperes gauge
usb_device_max_power_amperes{id="10c4:ea60:A__1",type="a"} 0.1
usb_device_max_power_amperes{id="0403:6001:F",type="b"} 0.1
# HELP usb_device_speed_bits_per_second The speed of the connection.
# TYPE usb_device_speed_bits_per_second gauge
usb_device_speed_bits_per_second{id="10c4:ea60:A__1",type="a"} 1.2e+07
usb_device_speed_bits_per_second{id="0403:6001:F",type="b"} 1.5e+06
# HELP usb_device_suspended Whether the device is suspended.
# TYPE usb_device_suspended gauge
usb_device_suspended{id="10c4:ea60:A__1",type="a"} 0
usb_device_suspended{id="0403:6001:F",type="b"} 1
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	for _, args := range [][]string{{"a", "b"}, {"-x"}} {
		test.ErrorContains(t, statsCommand.Run(t.Context(), args), "usage", test.Sprintf("stats %v", args))
	}
}
