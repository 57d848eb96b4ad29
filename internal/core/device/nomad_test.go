// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/conformance"
	"github.com/outrider-dev/outrider/internal/core/reservation"
)

// These tests run this binary as a plugin of Nomad's device manager, over a real socket.

const (
	soon = 30 * time.Second // long enough even on a busy machine
	a1   = "10c4/zigbee/ea60: a:1"
)

func one() fileWorld { return fileWorld{Groups: []Group{sticks("ea60", "a:1")}} }

func TestNomad_GetsChangesOnly(t *testing.T) {
	r := startRig(t, one())
	r.Want(a1, soon)
	n := r.Updates()
	test.Eq(t, 1, n, test.Sprintf("%d updates for the first list", n))
	r.quiet()
	r.set(fileWorld{Groups: []Group{sticks("ea60", "b:1", "a:1")}})
	r.Want("10c4/zigbee/ea60: a:1 b:1", soon)
	r.set(fileWorld{Groups: []Group{sticks("ea60", "b:1")}})
	r.Want("10c4/zigbee/ea60: a:1(unplugged) b:1", soon)
	if a := r.Resources()[0].Attributes["ids"]; a == nil || *a.String != "b:1" {
		t.Errorf("got attribute %v", a)
	}
	n = r.Updates()
	test.Eq(t, 3, n, test.Sprintf("%d updates for a list and two changes", n))
	r.quiet()
	n = r.processes()
	test.Eq(t, 1, n, test.Sprintf("%d processes have scanned: only the serving one may", n))
}

func TestNomad_DropsADeviceAfterItsGracePeriod(t *testing.T) {
	r := startRig(t, one(), `grace = "1s"`)
	r.Want(a1, soon)
	r.set(fileWorld{})
	r.Want("", soon) // "unplugged" is not expected first: only the newest list is sent, so a slow machine may skip it
	r.quiet()
}

func TestNomad_KilledPluginRestarts(t *testing.T) {
	r := startRig(t, one())
	r.Want(a1, soon)
	before := r.KillPlugin()
	var err error
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err = r.Reserve("10c4/zigbee/ea60", "a:1"); err == nil && r.PID() != before {
			break
		}
	}
	if err != nil || r.PID() == before || r.Devices() != a1 {
		t.Fatalf("after a kill: %v, process %d, devices\n%s", err, r.PID(), r.Devices())
	}
	r.set(fileWorld{Groups: []Group{sticks("ea60", "b:1")}})
	r.Want("10c4/zigbee/ea60: a:1(unplugged) b:1", soon)
}

// If a plugin was killed, for example at its memory limit, and dies again during its restart, Nomad gives up on it.
// Nomad keeps the plugin's last list, and still places jobs that need its devices.
func TestNomad_StillReservesAfterGivingUpOnThePlugin(t *testing.T) {
	r := startRig(t, one())
	r.Want(a1, soon)
	die := filepath.Join(r.dir, "die")
	must.NoError(t, os.WriteFile(die, nil, 0o600))
	r.KillPlugin()
	for end := time.Now().Add(soon); !strings.Contains(r.Log(), "dispensing plugin failed"); {
		if time.Sleep(10 * time.Millisecond); time.Now().After(end) {
			t.Fatalf("Nomad has not given it up after %s:\n%s", soon, r.Log())
		}
	}
	deaths := int64(0)
	// wait until Nomad no longer starts the plugin
	for last := time.Now(); time.Since(last) < 2*time.Second; time.Sleep(10 * time.Millisecond) {
		info, err := os.Stat(die)
		must.NoError(t, err)
		if info.Size() != deaths || deaths == 0 && time.Since(last) < soon {
			deaths, last = info.Size(), time.Now()
		}
	}
	must.NoError(t, os.Remove(die))
	sockets, _ := filepath.Glob(r.TempDir() + "/plugin*") // left by plugins that died
	for _, s := range sockets {
		os.Remove(s)
	}
	got := r.Devices()
	must.Eq(t, a1, got, must.Sprintf("Nomad has %s: the test tests nothing", got))
	if got, err := r.Reserve("10c4/zigbee/ea60", "a:1"); err != nil || got.Envs["IDS"] != "a:1" {
		t.Errorf("got %+v, %v", got, err)
	}
	r.set(fileWorld{Groups: []Group{sticks("ea60", "b:1")}})
	r.scanned(2)
	got = r.Devices()
	test.Eq(t, a1, got, test.Sprintf("Nomad gets changes, %s: it has not given up the plugin", got))
	_, err := r.Reserve("10c4/zigbee/ea60", "z:1")
	test.Error(t, err, test.Sprint("a missing device was reserved"))
}

func TestNomad_BadScansDoNotEndPlugin(t *testing.T) {
	bad := sticks("ea61", "0001")
	bad.Vendor = ""
	for name, w := range map[string]fileWorld{
		"an error":         {Err: "libusb: no device [code -4]"},
		"a panic":          {Panic: "libusb: unknown error [code -99]"},
		"an invalid group": {Groups: []Group{sticks("ea60", "a:1"), bad, sticks("ea63", "0001")}},
		"no device":        {Groups: []Group{}},
		"a non-UTF-8 text": {Groups: []Group{sticks("ea60", "a:1"), ill(sticks("ea62", "c:1"), "bad "+foreign+" byte")}},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t, one(), `grace = "1s"`)
			r.Want(a1, soon)
			pid := r.PID()
			r.set(w)
			r.scanned(3)
			r.set(fileWorld{Groups: []Group{sticks("ea60", "a:1", "b:1")}})
			r.Want("10c4/zigbee/ea60: a:1 b:1", soon)
			if r.PID() != pid || r.processes() != 1 {
				t.Errorf("it was started %d times", r.processes())
			}
		})
	}
}

func TestNomad_FailedFirstScanDoesNotDelayAgent(t *testing.T) {
	for name, w := range map[string]fileWorld{"with an error": {Err: "no such file"},
		"with a panic": {Panic: "no such file"}} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t, w)
			r.Want("", soon) // without an empty list, Nomad would wait for 50 s
			n := r.Updates()
			test.Eq(t, 1, n, test.Sprintf("%d updates", n))
			r.quiet()
			r.set(one())
			r.Want(a1, soon)
		})
	}
}

func TestNomad_ReservesDevices(t *testing.T) {
	r := startRig(t, fileWorld{Groups: []Group{sticks("ea60", "a:1", "b:1"), ill(sticks("ea60", "c:1"),
		"there is no tty")}})
	r.Want("10c4/zigbee/ea60: a:1 b:1\n10c4/zigbee/ea60 (unhealthy): c:1(there is no tty)", soon)

	got, err := r.Reserve("10c4/zigbee/ea60", "b:1", "a:1")
	must.NoError(t, err)
	devices, _, err := reservation.Recall(got.Envs)
	must.NoError(t, err, must.Sprintf("got %+v, recalled", got))
	must.SliceLen(t, 1, devices, must.Sprintf("got %+v, recalled", got))
	must.EqOp(t, *toConfig(got.Devices[0]), *devices[0], must.Sprintf("got %+v, recalled", got))
	test.Eq(t, "a:1,b:1", got.Envs["IDS"], test.Sprintf("got %+v, recalled", got))
	for _, c := range []struct {
		group, id, want string
	}{
		{"10c4/zigbee/ea60", "", "no device was requested"},
		{"10c4/zigbee/ea60", "z:1", "operation on unknown device(s)"}, // Nomad's own message
		{"10c4/zigbee/ea60 (unhealthy)", "c:1", `device "c:1" can't be used: there is no tty`},
	} {
		var ids []string
		if c.id != "" {
			ids = []string{c.id}
		}
		_, err := r.Reserve(c.group, ids...)
		wantError(t, err, c.want)
	}
}

func TestNomad_ReserveWaitsForReplug(t *testing.T) {
	r := startRig(t, one())
	r.Want(a1, soon)
	r.set(fileWorld{})
	r.Want(a1+"(unplugged)", soon)
	time.AfterFunc(300*time.Millisecond, func() { r.set(one()) })
	_, err := r.Reserve("10c4/zigbee/ea60", "a:1")
	test.NoError(t, err)
}

func TestNomad_GetsStats(t *testing.T) {
	r := startRig(t, one())
	r.Want(a1, soon)
	end := time.Now().Add(soon)
	for len(r.Stats()) == 0 && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
	}
	s := r.Stats()
	if len(s) != 1 || s[0].Name != "ea60" || s[0].InstanceStats["a:1"] == nil {
		t.Fatalf("got %+v", s)
	}
	if i := s[0].InstanceStats["a:1"]; *i.Summary.IntNumeratorVal != 3 || i.Stats == nil ||
		time.Since(i.Timestamp) > soon {
		t.Errorf("got %+v", i)
	}
}

func TestNomad_RefusesWrongConfiguration(t *testing.T) {
	for config, want := range map[string]string{
		`dir = "/sys/*"`:                `dir "/sys/*" has a *: name one directory`,
		``:                              `dir`,
		"dir = \"/x\"\nperiod = \"0s\"": "the time between scans is 0s: use 50ms or more",
	} {
		test.StrContains(t, conformance.RefuseManager(t, PluginBinary(t, "plugin", config)), want)
	}
}

func TestNomad_ScansLeakNothing(t *testing.T) {
	r := startRig(t, one())
	r.Want(a1, soon)
	cycle := func() {
		r.set(fileWorld{Groups: []Group{sticks("ea60", "a:1", "b:1")}})
		r.Want("10c4/zigbee/ea60: a:1 b:1", soon)
		r.set(fileWorld{Panic: "bad firmware"})
		r.scanned(2)
		r.set(fileWorld{Groups: []Group{sticks("ea60", "b:1")}})
		r.Want("10c4/zigbee/ea60: a:1(unplugged) b:1", soon)
		r.set(one())
		r.Want("10c4/zigbee/ea60: a:1 b:1(unplugged)", soon)
	}
	cycle()
	fds := func() int {
		all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.PID()))
		return len(all)
	}
	before := fds()
	for range 5 {
		cycle()
	}
	n := fds()
	for end := time.Now().Add(soon); n > before && time.Now().Before(end); n = fds() { // a running scan has open files
		time.Sleep(10 * time.Millisecond)
	}
	test.False(t, n > before, test.Sprintf("%d file descriptors, %d before", n, before))
}

// agentMain runs an agent with the plugin until it is killed. It prints the plugin's process id when
// the plugin is ready.
func agentMain(t *testing.T) {
	m := conformance.StartManager(t, PluginBinary(t, "plugin", fmt.Sprintf("dir = %q", os.Getenv(worldVar))))
	m.Want(a1, soon)
	fmt.Printf("plugin %d\n", m.PID())
	time.Sleep(5 * time.Minute) // so that this process also ends if the test is killed
}

func TestNomad_PluginEndsWithAgent(t *testing.T) {
	if os.Getenv(roleVar) == "agent" {
		agentMain(t)
		return
	}
	r := &rig{t: t, dir: t.TempDir()}
	r.set(one())
	temp, err := os.MkdirTemp("", "oa")
	must.NoError(t, err)
	defer os.RemoveAll(temp)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNomad_PluginEndsWithAgent$")
	cmd.Env = append(os.Environ(), roleVar+"=agent", worldVar+"="+r.dir, "TMPDIR="+temp)
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	pid := 0
	for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
		fmt.Sscanf(lines.Text(), "plugin %d", &pid)
	}
	if pid == 0 {
		t.Fatalf("no plugin was started: %v", cmd.Wait())
	}
	must.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // the error is always "signal: killed"
	conformance.WantEnd(t, pid, soon)
	sockets, _ := filepath.Glob(filepath.Join(temp, "*", "plugin*"))
	test.SliceEmpty(t, sockets, test.Sprint("left"))
}
