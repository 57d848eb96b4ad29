// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// released has the names that a release published. Nomad finds devices by these names, and tasks find their nodes.
type released struct {
	Devices     map[string]map[string]string // attributes of a group, by the names of group and device
	Reservation *nomad.ContainerReservation
}

const releasedFile = "devices.json"

func observe(t *testing.T) (*machine, []byte) {
	m := newMachine(t, `
		device "my-zigbee" {
			id    = "10c4:ea60"
			names { tty = "/dev/ttyACM0" }
		}
		device "key" { id = "1050:0407" }`)
	m.plug("10c4:ea60", "0001", "1-1")
	m.plug("1050:0407", "a/b c", "1-3", "hidraw")
	groups := m.scan()
	devices := map[string]map[string]string{}
	for _, g := range groups {
		for _, d := range g.Devices {
			about := map[string]string{}
			for name, value := range g.Attributes {
				about[name] = value.GoString()
			}
			devices[fmt.Sprintf("%s/%s/%s %s", g.Vendor, g.Type, g.Name, d.ID)] = about
		}
	}
	b, err := json.MarshalIndent(released{devices, m.reserve("10c4:ea60:0001")}, "", "  ")
	m.must(err)
	return m, []byte(strings.ReplaceAll(strings.ReplaceAll(string(b), m.nodes, "@NODES@"), m.root, "@ROOT@"))
}

// A running task keeps its device and its nodes over an upgrade or a rollback of the plugin, so a release must not
// change these names. No other state passes from one version to the next.
func TestDevices_KeepTheNamesOfEachRelease(t *testing.T) {
	record := func(t *testing.T, dir string) {
		_, b := observe(t)
		if err := os.WriteFile(filepath.Join(dir, releasedFile), append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	testsupport.EachRelease(t, record, func(t *testing.T, dir string) {
		b, err := os.ReadFile(filepath.Join(dir, releasedFile))
		if err != nil {
			t.Fatal(err)
		}
		m, now := observe(t)
		var was, is released
		m.must(json.Unmarshal(b, &was))
		m.must(json.Unmarshal(now, &is))
		for name, attributes := range was.Devices { // a later version may add attributes
			for key, value := range attributes {
				test.Eq(t, value, is.Devices[name][key], test.Sprintf("attribute %s of %s", key, name))
			}
		}
		for name, value := range was.Reservation.Envs {
			test.Eq(t, value, is.Reservation.Envs[name], test.Sprint(name))
		}
		test.Eq(t, was.Reservation.Devices, is.Reservation.Devices)
		test.Eq(t, was.Reservation.Mounts, is.Reservation.Mounts)
		for _, name := range []string{"10c4-ea60-0001/tty", "10c4-ea60-0001/usb"} {
			test.True(t, testsupport.Exists(filepath.Join(m.nodes, name)), test.Sprint(name))
		}
	})
}
