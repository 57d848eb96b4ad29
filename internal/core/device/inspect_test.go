// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/helper/pointer"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func named(vendor, kind, name string, ids ...string) Group {
	g := sticks(name, ids...)
	g.Vendor, g.Type = vendor, kind
	return g
}

func with(g Group, key string, a *structs.Attribute) Group {
	g.Attributes[key] = a
	return g
}

// Nomad would drop the whole plugin because of one bad item. The good device in the same list stays.
func TestInspect_LeavesOutItemsThatNomadRefuses(t *testing.T) {
	const good = "good[good:1]=good:1"
	for name, c := range map[string]struct {
		groups []Group
		want   string // in addition to the good device
		line   string
	}{
		"no vendor":              {[]Group{named("", "zigbee", "x", "a:1")}, "", "the vendor is empty"},
		"no type":                {[]Group{named("10c4", "", "x", "a:1")}, "", "the type is empty"},
		"no name":                {[]Group{named("10c4", "zigbee", "", "a:1")}, "", "the name is empty"},
		"a slash in the vendor":  {[]Group{named("a/b", "zigbee", "x", "a:1")}, "", "the vendor has a slash"},
		"a slash in the type":    {[]Group{named("10c4", "a/b", "x", "a:1")}, "", "the type has a slash"},
		"a slash in the name":    {[]Group{named("10c4", "zigbee", "x/y", "a:1")}, "x/y[a:1]=a:1", ""},
		"a non-UTF-8 name":       {[]Group{named("10c4", "zigbee", "x\xff", "a:1")}, "", "the name is not printable text"},
		"no id":                  {[]Group{sticks("x", "")}, "", "the id is empty"},
		"a comma in the id":      {[]Group{sticks("x", "a:1,b:1", "c:1")}, "x[c:1]=c:1", "the id has a comma"},
		"a space after the id":   {[]Group{sticks("x", "a:1 ")}, "", "begins or ends with a space"},
		"a line break in the id": {[]Group{sticks("x", "a\n1")}, "", "the id is not printable text"},
		"a non-UTF-8 id":         {[]Group{sticks("x", "a:\xff")}, "", "the id is not printable text"},
		"an id of digits":        {[]Group{sticks("x", "0001")}, "", "the id looks like a number"},
		"an id with an exponent": {[]Group{sticks("x", "7E5")}, "", "the id looks like a number"},
		"an id with a unit":      {[]Group{sticks("x", "12W")}, "", "the id looks like a number"},
		"an id that is nan":      {[]Group{sticks("x", "nan")}, "", "the id looks like a number"},
		"an id that is true":     {[]Group{sticks("x", "t")}, "", "the id looks like a number or a truth value"},
		"an id twice in a group": {[]Group{sticks("x", "a:1", "a:1")}, "x[a:1]=a:1",
			`group "10c4/zigbee/x" already has a device with this id`},
		"an id in two groups": {[]Group{sticks("x", "a:1"), sticks("w", "a:1")}, "w[a:1]=a:1",
			`device "a:1" of group "10c4/zigbee/x" is left out: group "10c4/zigbee/w" already has a device with this id`},
		"a nil attribute": {[]Group{with(sticks("x", "a:1"), "speed", nil)}, "x[a:1]=a:1",
			`attribute "speed" of device group "10c4/zigbee/x" is left out: the attribute has no value`},
		"an attribute without a value": {[]Group{with(sticks("x", "a:1"), "speed", &structs.Attribute{})}, "x[a:1]=a:1",
			"no attribute value set"},
		"an attribute of two values": {[]Group{with(sticks("x", "a:1"), "speed", &structs.Attribute{Int: pointer.Of(int64(1)),
			Bool: pointer.Of(true)})}, "x[a:1]=a:1", "only one attribute value may be set"},
		"an unknown unit": {[]Group{with(sticks("x", "a:1"), "speed", structs.NewIntAttribute(12, "Mbaud"))},
			"x[a:1]=a:1", `unrecognized unit "Mbaud"`},
		"a NaN attribute": {[]Group{with(sticks("x", "a:1"), "speed", structs.NewFloatAttribute(math.NaN(), ""))},
			"x[a:1]=a:1", "the value is infinite or not a number"},
		"an infinite attribute": {[]Group{with(sticks("x", "a:1"), "speed", structs.NewFloatAttribute(math.Inf(1), ""))},
			"x[a:1]=a:1", "the value is infinite or not a number"},
		"a non-UTF-8 attribute": {[]Group{with(sticks("x", "a:1"), "a\xff", structs.NewBoolAttribute(true))}, "x[a:1]=a:1",
			"the name is empty or not printable text"},
		"a group without devices": {[]Group{sticks("x")}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{}
				w.plug(append(c.groups, sticks("good", "good:1"))...)
				p, log := start(t, supplied(w))
				got := next(t, stream(t, p))
				all := strings.Fields(c.want + " " + good)
				slices.Sort(all)
				want(t, got, strings.Join(all, " "))
				time.Sleep(10 * time.Minute)
				lines := 0
				if c.line != "" {
					lines = 1
				}
				if n := log.count("is left out"); n != lines || c.line != "" && log.count(c.line) != 1 {
					t.Errorf("no single %q in\n%s", c.line, log)
				}
			})
		})
	}
}

func TestInspect_ReplacesInvalidUTF8(t *testing.T) {
	s, left := inspect([]Group{ill(with(sticks("x", "a:1"), "product", structs.NewStringAttribute("Caf\xe9")), "bad\xff")})
	d := s.devices["a:1"]
	must.SliceEmpty(t, left, must.Sprintf("got %+v", s))
	must.Eq(t, "bad\uFFFD", d.Problem, must.Sprintf("got %+v", s))
	test.Eq(t, "Caf\uFFFD", *s.attributes[d.group]["product"].String, test.Sprintf("got %+v", s))
}

// Device text must not control the terminal of a user who shows the node, or forge lines of a log.
func TestInspect_ReplacesUnprintableText(t *testing.T) {
	s, left := inspect([]Group{ill(with(sticks("x", "a:1"), "product", structs.NewStringAttribute("\x1b]0;root\x07 "+
		"\u202etxt.exe")), "bad\n[ERROR] agent: stop\x00")})
	d := s.devices["a:1"]
	must.SliceEmpty(t, left)
	must.Eq(t, "bad [ERROR] agent: stop ", d.Problem)
	test.Eq(t, " ]0;root   txt.exe", *s.attributes[d.group]["product"].String)
}

// Nomad compares the list with the previous one, so a different order would cause an update of the node each time.
func TestInspect_SortsGroups(t *testing.T) {
	all := []Group{named("a", "b", "a", "4:x"), named("b", "a", "a", "5:x"), named("a", "a", "c", "2:x"), named("a", "a",
		"b", "1:x"), named("a", "a", "d", "3:x")}
	for range len(all) {
		all = append(all[1:], all[0])
		s, _ := inspect(all)
		now, _ := ledger{}.enter(s, 0, time.Now())
		var got []string
		for _, g := range now.groups {
			got = append(got, g.Devices[0].ID)
		}
		test.SliceEqOp(t, []string{"1:x", "2:x", "3:x", "4:x", "5:x"}, got)
	}
}

func TestInspect_DoesNotChangeThePluginsAttributes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := sticks("x", "a:1")
		w := &world{}
		w.plug(g)
		p, _ := start(t, supplied(w))
		next(t, stream(t, p))
		test.MapLen(t, 1, g.Attributes)
	})
}

func TestInspect_MergesGroupsOfOneName(t *testing.T) {
	a, b, c := with(sticks("x", "a:1"), "port", structs.NewStringAttribute("1-1")), with(sticks("x", "b:1"), "port",
		structs.NewStringAttribute("1-2")), sticks("x", "c:1")
	for _, order := range [][]Group{{a, b, c}, {c, b, a}, {b, a, c}} {
		s, left := inspect(order)
		l := ledger{}
		now, _ := l.enter(s, 0, time.Now())
		want(t, listing(now.groups), "x[a:1 b:1 c:1]=a:1,b:1,c:1")
		must.SliceLen(t, 1, left)
		test.Eq(t, `attribute "port" of device group "10c4/zigbee/x" is left out: its devices have different `+
			`values`, left[0])
		if at := now.groups[0].Attributes; at["port"] != nil || at["usb_id"] == nil {
			t.Errorf("got %v", at)
		}
	}
}
