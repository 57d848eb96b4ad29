package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStatisticsSayWhatTheKernelDoes(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	dir := filepath.Join(m.root, "sys/bus/usb/devices/1-1")
	m.must(os.MkdirAll(dir+"/power", 0o755))
	for name, text := range map[string]string{"urbnum": "42\n", "power/runtime_status": "suspended\n", "power/active_duration": "7\n", "power/connected_duration": "x\n"} {
		m.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	stats, err := m.Stats(t.Context(), []string{"10c4:ea60:0001"})
	m.must(err)
	s := stats["10c4:ea60:0001"]
	got := map[string]string{}
	for name, v := range s.Stats.Attributes {
		if v.Desc == "" {
			t.Errorf("%s is not described", name)
		}
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
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if s.Summary != s.Stats.Attributes["Transfers"] || s.Timestamp.IsZero() {
		t.Errorf("summary is %+v", s.Summary)
	}
	m.must(p.Unplug())
	stats, err = m.Stats(t.Context(), []string{"10c4:ea60:0001"})
	m.must(err)
	if there := stats["10c4:ea60:0001"].Stats.Attributes["Plugged in"].BoolVal; *there {
		t.Error("still there though unplugged since the last scan")
	}
}
