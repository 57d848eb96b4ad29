// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/nomad/structs"
	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/conformance"
	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestPlugin_Conforms(t *testing.T) {
	m := newMachine(t, ``)
	stick := m.plug("10c4:ea60", "0001", "1-1")
	m.plug("10c4:ea60", "0002", "1-2")
	m.plug("1050:0407", "7", "1-3", "hidraw")
	m.plug("1a86:7523", "", "2-1")
	conformance.Device{
		Plugin: func(ctx context.Context, log hclog.Logger) nomad.DevicePlugin { return device.New(ctx, log, usb) },
		Config: fmt.Sprintf(`
			root       = %q
			shadow_dir = %q
			match_all  = true
			rescan     = "200ms"
			device "zigbee" { id = "10c4:ea60" }
			device "serial-key" {
				id    = "1050:0407"
				nodes = ["tty"]
			}`, m.root, m.nodes),
		Unplug:   func() { m.must(stick.Unplug()) },
		Plug:     func() { stick = m.plug("10c4:ea60", "0001", "1-4") },
		Measures: true,
	}.Test(t)
}

const soon = time.Minute // enough for a busy machine

// agent starts an agent's device manager, with the plugin as a separate process.
func (m *machine) agent(config string) *conformance.Manager {
	m.Helper()
	exe, err := os.Executable()
	m.must(err)
	return conformance.StartManager(m.T, conformance.Binary{
		Name: pluginName, Exe: exe, Env: map[string]string{roleVar: "plugin"},
		Config: fmt.Sprintf("root = %q\nshadow_dir = %q\nrescan = \"200ms\"\n%s", m.root, m.nodes, config),
	})
}

func TestNomad_IsNotifiedWhenADeviceIsPluggedOrUnplugged(t *testing.T) {
	m := newMachine(t, ``)
	a := m.agent("grace = \"5m\"\n" + zigbeeBlock)
	a.Want("", soon)
	const plugged = "10c4/zigbee/ea60: 10c4:ea60:0001"
	for range 2 {
		stick := m.plug("10c4:ea60", "0001", "1-1")
		a.Want(plugged, soon)
		m.must(stick.Unplug())
		a.Want(plugged+"(unplugged)", soon)
	}
	updates := a.Updates()
	time.Sleep(time.Second)
	now := a.Updates()
	test.Eq(t, updates, now, test.Sprintf("the node was updated %d times without a change", now-updates))
}

func TestNomad_DropsADeviceAfterItsGracePeriod(t *testing.T) {
	m := newMachine(t, ``)
	stick := m.plug("10c4:ea60", "0001", "1-1")
	a := m.agent("grace = \"1s\"\n" + zigbeeBlock)
	a.Want("10c4/zigbee/ea60: 10c4:ea60:0001", soon)
	m.must(stick.Unplug())
	a.Want("", soon) // without an earlier "(unplugged)", which a slow agent may skip
}

// Text that is not valid UTF-8 would end the plugin's stream to Nomad, and Nomad would then drop the plugin with all
// its devices until the agent is restarted.
func TestNomad_TextFromADeviceDoesNotEndTheStream(t *testing.T) {
	m := newMachine(t, ``)
	m.plug("10c4:ea60", "0001", "1-1")
	a := m.agent("grace = \"0s\"\nmatch_all = true")
	a.Want("10c4/usb/ea60: 10c4:ea60:0001", soon)
	pid := a.PID()
	write := func(text string) {
		for _, attribute := range []string{"manufacturer", "product", "serial"} {
			m.must(os.WriteFile(m.root+"/sys/bus/usb/devices/1-1/"+attribute, []byte(text+"\n"), 0o600))
		}
	}
	for i, hostile := range []string{
		"\xff", "Caf\xe9", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\xaf", "a\x00b", "\x1b]0;root\x07", "a\nb", "a\u202eb",
		"nan", "1e400", "-0", "true", "a,b", "${env[\"HOME\"]}", "../../etc", strings.Repeat("ä", 4000),
		strings.Repeat("\xff\xfe", 2000),
	} {
		write(hostile)
		for end := time.Now().Add(soon); !slices.ContainsFunc(a.Resources(), func(d *structs.NodeDeviceResource) bool {
			return len(d.Instances) == 1 && d.Attributes["product"] != nil && d.Attributes["product"].String != nil &&
				*d.Attributes["product"].String != "CP2102" && !strings.HasPrefix(*d.Attributes["product"].String, "good")
		}); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%.20q: the agent has not received it: %s\n%s", hostile, a.Devices(), a.Log())
			}
		}
		for _, d := range a.Resources() {
			for name, attribute := range d.Attributes {
				if text, ok := attribute.GetString(); ok && (len(text) > 2*512+len(" ()") || !utf8.ValidString(text) ||
					strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })) {
					t.Errorf("%.20q: attribute %s is %.2000q", hostile, name, text)
				}
			}
			_, err := a.Reserve(d.Vendor+"/"+d.Type+"/"+d.Name, d.Instances[0].ID)
			test.NoError(t, err, test.Sprintf("%.20q: can't be reserved", hostile))
		}
		write(fmt.Sprintf("good%d", i))
		a.Want(fmt.Sprintf("10c4/usb/ea60: 10c4:ea60:good%d", i), soon)
	}
	test.Eq(t, pid, a.PID(), test.Sprint("the plugin was restarted"))
}

func TestNomad_ReservationIsSameAfterKill(t *testing.T) {
	m := newMachine(t, ``)
	m.plug("10c4:ea60", "0001", "1-1")
	a := m.agent(zigbeeBlock)
	a.Want("10c4/zigbee/ea60: 10c4:ea60:0001", soon)
	before, err := a.Reserve("10c4/zigbee/ea60", "10c4:ea60:0001")
	m.must(err)
	node := m.nodes + "/10c4-ea60-0001/tty"
	open, err := os.Lstat(node)
	m.must(err)

	killed := a.KillPlugin()
	for end := time.Now().Add(soon); a.PID() == killed && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	var after *nomad.ContainerReservation
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if after, err = a.Reserve("10c4/zigbee/ea60", "10c4:ea60:0001"); err == nil {
			break
		}
	}
	m.must(err)
	wantReservation(t, after, before)
	now, err := os.Lstat(node)
	must.NoError(t, err, must.Sprint("the node that tasks have open was made again"))
	test.True(t, os.SameFile(open, now), test.Sprint("the node that tasks have open was made again"))
}

func TestNomad_ReserveWaitsForReplug(t *testing.T) {
	m := newMachine(t, ``)
	stick := m.plug("10c4:ea60", "0001", "1-1")
	a := m.agent("grace = \"1m\"\n" + zigbeeBlock)
	a.Want("10c4/zigbee/ea60: 10c4:ea60:0001", soon)
	m.must(stick.Unplug())
	a.Want("10c4/zigbee/ea60: 10c4:ea60:0001(unplugged)", soon)
	answered := make(chan error, 1)
	go func() {
		_, err := a.Reserve("10c4/zigbee/ea60", "10c4:ea60:0001")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	m.plug("10c4:ea60", "0001", "1-2")
	test.NoError(t, <-answered)
}

func TestNomad_RefusesAnInvalidConfiguration(t *testing.T) {
	exe, err := os.Executable()
	must.NoError(t, err)
	refusal := conformance.RefuseManager(t, conformance.Binary{
		Name: pluginName, Exe: exe, Env: map[string]string{roleVar: "plugin"}, Config: "device \"zwave\" {\nid = 0x0658\n}",
	})
	test.StrContains(t, refusal, `device "zwave": id must be a string, but is the number 1624 (0x0658): `+
		`put it in quotes`)
}

func TestUSB_ScansLeakNothing(t *testing.T) {
	testsupport.Long(t, "repeats")
	m := newMachine(t, "match_all = true\n"+zigbeeBlock)
	for port := range 4 {
		m.plug("10c4:ea60", fmt.Sprint(port), fmt.Sprintf("1-%d", port+1))
	}
	held := func() [3]int {
		count := func(dir string) int {
			entries, err := os.ReadDir(dir)
			m.must(err)
			return len(entries)
		}
		return [3]int{count("/proc/self/fd"), count("/proc/self/task"), len(m.treeOfNodes())}
	}
	for range 20 {
		m.scan()
	}
	before := held()
	for range 1000 {
		m.scan()
	}
	now := held()
	// the number of threads may grow a little: the runtime starts some for slow system calls
	must.False(t, now[0] > before[0],
		must.Sprintf("descriptors, threads and nodes are %v, before %v", now, before))
	must.Eq(t, before[2], now[2], must.Sprintf("descriptors, threads and nodes are %v, before %v", now, before))
	test.False(t, now[1] > before[1]+20,
		test.Sprintf("descriptors, threads and nodes are %v, before %v", now, before))
	if len(m.warned) > 1 { // the first warning is about the simulation
		t.Errorf("warned of %v", m.warned)
	}
}

func (m *machine) treeOfNodes() (all []string) {
	m.must(filepath.WalkDir(m.nodes, func(path string, _ os.DirEntry, err error) error {
		all = append(all, path)
		return err
	}))
	return all
}
