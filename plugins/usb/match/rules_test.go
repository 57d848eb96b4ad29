// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import (
	"reflect"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// verdicts compiles the blocks, assigns zigbee and key, and returns Type, Excluded and Also of each.
func verdicts(t *testing.T, blocks, exclude map[string]Match, all bool) [][]string {
	t.Helper()
	r, err := Compile(blocks, exclude, all)
	must.NoError(t, err)
	var got [][]string
	for _, a := range r.Assign([]sysfs.Device{zigbee, key}, &IDs{}) {
		test.Eq(t, a.Type != "" && a.Excluded == "", a.Published(), test.Sprint("published"))
		got = append(got, append([]string{a.Type, a.Excluded}, a.Also...))
	}
	return got
}

func TestRules_FirstBlockByNameWins(t *testing.T) {
	id := func(id string) Match { return Match{ID: schema.Strings{id}} }
	for name, test := range map[string]struct {
		blocks, exclude map[string]Match
		all             bool
		want            [][]string
	}{
		"no block":                  {nil, nil, false, [][]string{{"", ""}, {"", ""}}},
		"match_all without a block": {nil, nil, true, [][]string{{"usb", ""}, {"usb", ""}}},
		"a block": {map[string]Match{"zigbee": id("10c4:*")}, nil, false, [][]string{{"zigbee", ""}, {"",
			""}}},
		"a block and all others": {map[string]Match{"zigbee": id("10c4:*")}, nil, true, [][]string{{"zigbee", ""}, {"usb",
			""}}},
		"overlapping blocks": {map[string]Match{"b": id("*:*"), "a": id("10c4:*"), "c": id("10c4:ea60")}, nil, false,
			[][]string{{"a", "", "b", "c"}, {"b", ""}}},
		"an exclude beats a block": {map[string]Match{"zigbee": id("10c4:*")}, map[string]Match{"x": id("10c4:*"),
			"w": id("10c4:ea60")}, false, [][]string{{"zigbee", "w"}, {"", ""}}},
		"an exclude of a class": {nil, map[string]Match{"keys": {Class: schema.Strings{"hid"}}}, true, [][]string{{"usb",
			""}, {"usb", "keys"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := verdicts(t, test.blocks, test.exclude, test.all); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// A task with a disk's node can bypass the disk's file systems.
func TestRules_MatchAllLeavesOutDisks(t *testing.T) {
	usb, sda, tty := sysfs.Node{Kind: sysfs.USB}, sysfs.Node{Kind: sysfs.Storage}, sysfs.Node{Kind: sysfs.TTY}
	r, err := Compile(map[string]Match{"backup": {Serial: schema.Strings{"B"}}}, nil, true)
	must.NoError(t, err)
	for name, c := range map[string]struct {
		serial string
		nodes  []sysfs.Node
		want   string
	}{
		"a disk":                   {"A", []sysfs.Node{usb, sda}, ""},
		"a disk with a block":      {"B", []sysfs.Node{usb, sda}, "backup"},
		"a modem with a card slot": {"A", []sysfs.Node{usb, tty, sda}, AnyType},
		"a radio":                  {"A", []sysfs.Node{usb}, AnyType},
	} {
		d := stick("1", c.serial)
		d.Nodes = c.nodes
		test.Eq(t, c.want, r.Assign([]sysfs.Device{d}, &IDs{})[0].Type, test.Sprint(name))
	}
}

func TestRules_BlockWithAPortIdentifiesDevicesByPort(t *testing.T) {
	m := Match{ID: schema.Strings{"10c4:ea60"}, Port: schema.Strings{"1-1"}}
	for want, serial := range map[string]schema.Strings{"10c4:ea60@pci-0000:00:14.0-usbv2-0:1": nil,
		"10c4:ea60:A": {"A"}} {
		m.Serial = serial
		r, err := Compile(map[string]Match{"left": m}, nil, true)
		must.NoError(t, err)
		for _, devices := range [][]sysfs.Device{{stick("1", "A")}, {stick("1", "A"), stick("2", "B")}} {
			got := r.Assign(devices, &IDs{})
			must.Eq(t, want, got[0].ID, must.Sprintf("got %+v", got))
			test.Eq(t, "A", got[0].Device.Serial, test.Sprintf("got %+v", got))
		}
	}
	r, err := Compile(map[string]Match{"left": {Port: schema.Strings{"1-1"}}, "right": {Port: schema.Strings{"1-2"}}}, nil,
		false)
	must.NoError(t, err)
	var ids IDs
	alone := r.Assign([]sysfs.Device{stick("1", "A")}, &ids)[0].ID
	test.Eq(t, r.Assign([]sysfs.Device{stick("1", "A"), stick("2", "A")}, &ids)[0].ID, alone,
		test.Sprintf("without a twin it is %s", alone))
}

func TestRules_KnownAsKeepsTheIDOfADevice(t *testing.T) {
	r, err := Compile(map[string]Match{"tpu": {ID: schema.Strings{"1a6e:089a", "18d1:9302"}}}, nil, true)
	must.NoError(t, err)
	as := sysfs.ID{Vendor: 0x1a6e, Product: 0x089a}
	r.KnownAs = map[string]sysfs.ID{"tpu": as}
	fresh := sysfs.Device{Name: "1-4", Path: "pci-0000:00:14.0-usbv2-0:4", ID: as}
	used := sysfs.Device{Name: "2-4", Path: "pci-0000:00:14.0-usbv3-0:4", ID: sysfs.ID{Vendor: 0x18d1, Product: 0x9302},
		Serial: "7"}
	other := stick("1", "A")
	for _, d := range []sysfs.Device{fresh, used} {
		got := r.Assign([]sysfs.Device{d, other}, &IDs{})
		want := []Assigned{{Device: d, ID: "1a6e:089a@pci-0000:00:14.0-usb-0:4", As: as, Type: "tpu"}, {Device: other,
			ID: "10c4:ea60:A", As: other.ID, Type: AnyType}}
		for i := range got {
			got[i].Also = nil // empty and nil count as equal
		}
		test.Eq(t, want, got)
	}
}

func TestRules_ErrorNamesBlock(t *testing.T) {
	for want, compile := range map[string]func() (*Rules, error){
		`device "zigbee": id "10c4" is not vendor and product as lsusb writes them, four hex digits each: use for ` +
			`example "10c4:ea60" or "10c4:*"`: func() (*Rules, error) {
			return Compile(map[string]Match{"zigbee": {ID: schema.Strings{"10c4"}}}, nil, false)
		},
		`exclude "mine": no option selects devices: set id, serial, class, port, driver or udev`: func() (*Rules,
			error) {
			return Compile(nil, map[string]Match{"mine": {}}, true)
		},
	} {
		_, err := compile()
		test.EqError(t, err, want)
	}
}
