// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
)

func TestUnit_TaskGetsAllDevices(t *testing.T) {
	m := newMachine(t, `
		device "radios" {
			id       = "10c4:ea60"
			together = 2
			nodes    = ["tty"]
			names { tty = "/dev/ttyACM0" }
		}
		device "zwave" { id = "0658:0200" }`)
	m.plug("10c4:ea60", "B", "1-1")
	m.plug("10c4:ea60", "A", "1-2")
	m.plug("0658:0200", "Z", "1-3")
	for range 3 {
		m.wantPublished("0658/zwave/0200 0658:0200:Z", "10c4/radios/ea60 unit:radios")
	}
	serials, _ := m.scan()[1].Attributes["serials"].GetString()
	test.Eq(t, "A,B", serials, test.Sprint("serials are"))
	r := m.reserve("unit:radios")
	host := m.nodes + "/10c4-ea60-"
	for name, want := range map[string]string{
		"USB_RADIOS_TTY": "/dev/radios/tty", "USB_RADIOS_ID": "10c4:ea60:A", "USB_RADIOS_HOST_TTY": host + "A/tty",
		"USB_RADIOS_2_TTY": "/dev/radios-2/tty", "USB_RADIOS_2_ID": "10c4:ea60:B", "USB_RADIOS_2_HOST_TTY": host + "B/tty",
	} {
		test.Eq(t, want, r.Envs[name], test.Sprint(name))
	}
	got := map[string]string{}
	for _, d := range r.Devices {
		if !strings.Contains(d.TaskPath, "by-id") {
			got[d.TaskPath] = d.HostPath
		}
	}
	test.MapEqOp(t, map[string]string{"/dev/radios/tty": host + "A/tty", "/dev/ttyACM0": host + "A/tty",
		"/dev/radios-2/tty": host + "B/tty"}, got,
		test.Sprint("devices are"))
	stats, err := m.Stats(t.Context(), []string{"unit:radios"})
	m.must(err)
	test.SliceEqOp(t, []string{"10c4:ea60:A",
		"10c4:ea60:B"}, slices.Sorted(maps.Keys(stats["unit:radios"].Stats.Nested)),
		test.Sprint("statistics are of"))
	n := *stats["unit:radios"].Stats.Nested["10c4:ea60:A"].Attributes["Re-plugs"].IntNumeratorVal
	test.Eq(t, 0, n, test.Sprintf("counted %d re-plugs", n))
}

func TestCheck_ReportsIncompleteUnit(t *testing.T) {
	m := newMachine(t, "")
	m.plug("10c4:ea60", "A", "1-1")
	got, err := m.check("root = \"ROOT\"\ndevice \"radios\" {\nid = \"10c4:*\"\ntogether = 2\n}")
	m.must(err)
	wantLines(t, got, "  unhealthy: 1 of 2 are plugged in, which are given together")
}

func TestUnit_IncompleteIsRefused(t *testing.T) {
	config := `device "radios" {
		id       = "10c4:*"
		together = 2
	}`
	m := newMachine(t, "grace = \"1m\"\n"+config)
	b := m.plug("10c4:ea60", "B", "1-1")
	m.wantPublished("10c4/radios/ea60 unit:radios (1 of 2 are plugged in: 10c4:ea60:B)")
	m.plug("10c4:ea60", "A", "1-2")
	m.wantPublished("10c4/radios/ea60 unit:radios")
	m.must(b.Unplug())
	m.wantPublished() // as any that is plugged in again, for which a reservation waits
	m.partial["radios"] = time.Now().Add(-time.Hour)
	m.wantPublished("10c4/radios/ea60 unit:radios (1 of 2 are plugged in: 10c4:ea60:A)")
	m.plug("10c4:8a2a", "C", "1-1")
	m.wantPublished("10c4/radios/8a2a unit:radios (its devices are not of one product: match one id)")
	m.plug("10c4:ea60", "D", "1-3")
	m.partial = map[string]time.Time{}
	m.wantPublished("10c4/radios/8a2a unit:radios (3 of 2 are plugged in: 10c4:8a2a:C,10c4:ea60:A,10c4:ea60:D)")

	m = newMachine(t, strings.Replace(config, "together = 2", "together = 2\nnodes = [\"tty\"]", 1))
	m.plug("10c4:ea60", "A", "1-1")
	m.plug("10c4:ea60", "B", "1-2", "hidraw")
	m.wantPublished("10c4/radios/ea60 unit:radios (10c4:ea60:B: no tty: its driver usbhid has made none)")
}

// The grace begins with the pull, and not with the last look at the whole unit.
func TestUnit_HasGraceWhenOneIsPulled(t *testing.T) {
	m := newMachine(t, "grace = \"300ms\"\ndevice \"radios\" {\nid = \"10c4:ea60\"\ntogether = 2\n}")
	m.plug("10c4:ea60", "A", "1-1")
	b := m.plug("10c4:ea60", "B", "1-2")
	for range 2 {
		m.wantPublished("10c4/radios/ea60 unit:radios")
		time.Sleep(350 * time.Millisecond)
		m.must(b.Unplug())
		m.wantPublished()
		time.Sleep(350 * time.Millisecond)
		m.wantPublished("10c4/radios/ea60 unit:radios (1 of 2 are plugged in: 10c4:ea60:A)")
		b = m.plug("10c4:ea60", "B", "1-2")
	}
}
