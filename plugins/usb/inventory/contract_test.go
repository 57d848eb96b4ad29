// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport/usbsim"
)

// These tests cover bugs of Nomad's example USB plugin (cgbaker's demo). More of its bugs are covered by tests of
// internal/core/device, and of the packages that list devices.

func TestReserve_TaskTalksToDevice(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	stick := m.plug("10c4:ea60", "0001", "1-1")
	warned := m.serve(stick)
	m.scan()
	r := m.reserve("10c4:ea60:0001")
	must.SliceNotEmpty(t, r.Devices, must.Sprintf("it is empty: %+v", r))
	must.MapNotEmpty(t, r.Envs, must.Sprintf("it is empty: %+v", r))
	tty, err := os.OpenFile(r.Envs["USB_ZIGBEE_HOST_TTY"], os.O_RDWR, 0)
	m.must(err)
	defer tty.Close()
	_, err = tty.WriteString("turn the light on\n")
	m.must(err)
	tty.SetReadDeadline(time.Now().Add(soon)) // may be unsupported
	got, err := bufio.NewReader(tty).ReadString('\n')
	m.must(err)
	must.Eq(t, "stick: turn the light on\n", got, must.Sprintf("the stick heard %q and answered", warned))
	test.Eq(t, "turn the light on\n", warned.String(), test.Sprintf("the stick heard %q and answered", warned))
}

// serve makes the stick answer until the test ends.
func (m *machine) serve(p *usbsim.Plugged) *output {
	var out output
	done := make(chan error, 1)
	go func() { done <- p.Serve(m.Context(), &out) }() // the context ends before Cleanup functions run
	m.Cleanup(func() { m.must(<-done) })
	return &out
}

func TestReserve_IncludesEveryDeviceNode(t *testing.T) {
	m := newMachine(t, `device "combined" { id = "10c4:8a2a" }`)
	m.plug("10c4:8a2a", "1", "3-2", "tty", "hidraw", "tty")
	m.scan()
	host := m.nodes + "/10c4-8a2a-1/"
	got := map[string]string{}
	for _, d := range m.reserve("10c4:8a2a:1").Devices {
		got[d.TaskPath] = d.HostPath
	}
	for task, want := range map[string]string{
		"/dev/combined/usb": "usb", "/dev/combined/tty-if00": "tty-if00", "/dev/combined/tty-if02": "tty-if02",
		"/dev/combined/hidraw": "hidraw",
	} {
		test.Eq(t, host+want, got[task], test.Sprint(task))
	}
}

func TestGroups_AreNamedByVendorAndProductNumbers(t *testing.T) {
	m := newMachine(t, `match_all = true`)
	table := filepath.Join(m.root, "usr/share/hwdata")
	m.must(os.MkdirAll(table, 0o755))
	m.must(os.WriteFile(table+"/usb.ids", []byte("0aaa  A/B Semiconductors\n\t0001  Same name\n\t0002  Same name\n"),
		0o644))
	for port, id := range map[string]string{"1-1": "0aaa:0001", "1-2": "0aaa:0002"} {
		p := m.plug(id, "x", port)
		for _, name := range []string{"manufacturer", "product"} {
			m.must(os.Remove(filepath.Join(m.root, "sys/bus/usb/devices", p.Port, name)))
		}
	}
	m.wantPublished("0aaa/usb/0001 0aaa:0001:x", "0aaa/usb/0002 0aaa:0002:x")
	for _, g := range m.scan() {
		vendor, _ := g.Attributes["vendor"].GetString()
		test.Eq(t, "A/B Semiconductors", vendor, test.Sprintf("vendor of %s", g.Name))
	}
}

func TestGroups_HaveAttributes(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.plug("10c4:ea60", "nan", "1-1") // Nomad's parser would make it a number
	g := m.scan()[0]
	for _, name := range []string{"usb_id", "vendor", "product", "serial", "port", "classification", "driver"} {
		if text, ok := g.Attributes[name].GetString(); !ok || text == "" {
			t.Errorf("%s is %v", name, g.Attributes[name])
		}
	}
	for _, name := range []string{"vendor_id", "product_id", "class_id", "sub_class_id", "protocol_id", "speed"} {
		if _, ok := g.Attributes[name].GetInt(); !ok {
			t.Errorf("%s is %v", name, g.Attributes[name])
		}
	}
	for name, a := range g.Attributes {
		must.False(t, strings.HasPrefix(name, "unique."),
			must.Sprintf("%s is %v, which the scheduler does not use well", name, a))
		test.Nil(t, a.Float, test.Sprintf("%s is %v, which the scheduler does not use well", name, a))
	}
}

func TestPlan_WarnsOfEmptyConfiguration(t *testing.T) {
	m := newMachine(t, ``)
	m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	test.StrContains(t, m.log.String(), "no device is published",
		test.Sprintf("without a configuration it logs %q", m.log))
	m.start(`
		device "a" { id = ["10C4:EA60", "0x1a86:0x7523"] }
		device "b" { id = "0403:*" }`) // ids as a list, in upper case, with 0x, and with *
	m.plug("1a86:7523", "1", "1-2")
	m.plug("0403:6001", "1", "1-3")
	m.wantPublished("0403/b/6001 0403:6001:1", "10c4/a/ea60 10c4:ea60:0001", "1a86/a/7523 1a86:7523:1")
	if _, err := decode(t, `device "a" { id = "4292" }`); err == nil { // 4292 is 0x10c4 in decimal
		t.Error("a decimal number is taken for an id")
	}
}

func TestInventory_LogsNothingWithoutChange(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	first := m.log.String() // the warning about the simulation
	for range 50 {
		m.scan()
	}
	must.Eq(t, first, m.log.String(), must.Sprintf("logged: %s", m.log))
	test.Eq(t, 1, strings.Count(first, "\n"), test.Sprintf("logged: %s", m.log))
}
