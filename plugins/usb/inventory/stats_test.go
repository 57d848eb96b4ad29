// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestStats_AgreeWithKernel(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	dir := filepath.Join(m.root, "sys/bus/usb/devices/1-1")
	m.must(os.MkdirAll(dir+"/power", 0o755))
	for name, text := range map[string]string{"urbnum": "42\n", "power/runtime_status": "suspended\n",
		"power/active_duration": "7\n", "power/connected_duration": "x\n"} {
		m.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	stats, err := m.Stats(t.Context(), []string{"10c4:ea60:0001"})
	m.must(err)
	s := stats["10c4:ea60:0001"]
	got := map[string]string{}
	for name, v := range s.Stats.Attributes {
		test.NotEq(t, "", v.Desc, test.Sprintf("%s is not described", name))
		switch {
		case v.IntNumeratorVal != nil:
			got[name] = strings.TrimSpace(fmt.Sprint(*v.IntNumeratorVal, " ", v.Unit))
		case v.FloatNumeratorVal != nil:
			got[name] = fmt.Sprint(*v.FloatNumeratorVal, " ", v.Unit)
		case v.StringVal != nil:
			got[name] = *v.StringVal
		case v.BoolVal != nil:
			got[name] = fmt.Sprint(*v.BoolVal)
		}
	}
	want := map[string]string{
		"Transfers": "42 URBs", "Power state": "suspended", "Time active": "7 ms", "Plugged in": "true", "Re-plugs": "0",
		"Maximum power": "100 mA", "Speed": "12 Mbit/s",
	}
	test.MapEqOp(t, want, got)
	must.EqOp(t, s.Stats.Attributes["Transfers"], s.Summary, must.Sprint("summary"))
	test.False(t, s.Timestamp.IsZero(), test.Sprint("summary"))
	m.must(p.Unplug())
	m.idle = 0
	stats, err = m.Stats(t.Context(), []string{"10c4:ea60:0001"})
	m.must(err)
	if there := stats["10c4:ea60:0001"].Stats.Attributes["Plugged in"].BoolVal; *there {
		t.Error("still there though unplugged since the last scan")
	}
}

// counting is a file system that counts the opened files.
type counting struct {
	fs.FS
	opened *int
}

func (c counting) Open(name string) (fs.File, error) { *c.opened++; return c.FS.Open(name) }

func TestStats_ReadOnlyDevicesInUse(t *testing.T) {
	m := newMachine(t, `device "gps" {
		id    = "10c4:ea60"
		count = 3
	}`)
	var ids []string
	for i := range 5 {
		m.plug("10c4:ea60", fmt.Sprint(i), fmt.Sprintf("1-%d", i+1))
		for share := range 3 {
			ids = append(ids, fmt.Sprintf("10c4:ea60:%d#%d", i, share+1))
		}
	}
	m.scan()
	opened := 0
	m.inventory.open = func() (fs.FS, func(), error) { return counting{os.DirFS(m.root), &opened}, func() {}, nil }
	read := func() int {
		t.Helper()
		opened = 0
		stats, err := m.Stats(t.Context(), ids)
		m.must(err)
		for _, id := range ids {
			if there := stats[id].Stats.Attributes["Plugged in"].BoolVal; !*there {
				t.Errorf("%s is not plugged in", id)
			}
		}
		return opened
	}
	const each = 5 // files that are read per stick
	for _, c := range []struct {
		when string
		do   func()
		want int
	}{
		{"at first", func() {}, 5 * each},
		{"while none is reserved", func() {}, 0},
		{"when one is reserved", func() { m.reserve("10c4:ea60:3#2") }, each},
		{"and at each interval", func() {}, each},
		{"after a minute", func() {
			m.must(os.WriteFile(m.root+"/sys/bus/usb/devices/1-1/urbnum", []byte("9\n"), 0o644))
			m.idle = 0
		}, 5 * each},
		{"when another has been used", func() { m.idle = idle }, 2 * each},
		{"when it is idle again", func() {}, each},
	} {
		c.do()
		got := read()
		test.Eq(t, c.want, got, test.Sprintf("%s %d files are read", c.when, got))
	}
}
