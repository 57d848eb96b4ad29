// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/plugins/usb/config"
)

func TestReserve_UsesNamesOfBlock(t *testing.T) {
	m := newMachine(t, `device "my-zigbee" {
		id    = "10c4:ea60"
		names { tty = "/dev/ttyACM0" }
		mount { host_path = "/run/pcscd" }
		mount {
			host_path = "/var/lib/zigbee"
			task_path = "/data"
			read_only = false
		}
		cgroup_permissions = "rwm"
	}`)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	r := m.reserve("10c4:ea60:0001")
	host := m.nodes + "/10c4-ea60-0001/"
	byID := "/dev/serial/by-id/usb-Silicon_Labs_CP2102_0001-if00-port0"
	want := &nomad.ContainerReservation{
		Devices: []*nomad.DeviceSpec{
			{TaskPath: "/dev/my-zigbee/usb", HostPath: host + "usb", CgroupPerms: "rwm"},
			{TaskPath: "/dev/my-zigbee/tty", HostPath: host + "tty", CgroupPerms: "rwm"},
			{TaskPath: "/dev/ttyACM0", HostPath: host + "tty", CgroupPerms: "rwm"},
			{TaskPath: byID, HostPath: host + "tty", CgroupPerms: "rwm"},
		},
		Mounts: []*nomad.Mount{
			{TaskPath: "/run/pcscd", HostPath: "/run/pcscd", ReadOnly: true},
			{TaskPath: "/data", HostPath: "/var/lib/zigbee"},
		},
		Envs: map[string]string{
			"USB_MY_ZIGBEE_ID": "10c4:ea60:0001", "USB_MY_ZIGBEE_VENDOR_ID": "10c4", "USB_MY_ZIGBEE_PRODUCT_ID": "ea60",
			"USB_MY_ZIGBEE_SERIAL": "0001",
			"USB_MY_ZIGBEE_PORT":   "1-1", "USB_MY_ZIGBEE_BUS": "1", "USB_MY_ZIGBEE_BUS_PORT": "1", "USB_MY_ZIGBEE_ADDRESS": "4",
			"USB_MY_ZIGBEE_TTY": "/dev/my-zigbee/tty", "USB_MY_ZIGBEE_HOST_TTY": host + "tty",
			"USB_MY_ZIGBEE_USB": "/dev/my-zigbee/usb", "USB_MY_ZIGBEE_HOST_USB": host + "usb",
		},
	}
	wantReservation(t, r, want)
	if info, err := os.Stat(r.Devices[1].HostPath); err != nil || info.Mode().Perm() != 0o660 ||
		info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("the node is %v, %v", info.Mode(), err)
	}
	if target, err := filepath.EvalSymlinks(host + "tty"); err != nil || !strings.HasPrefix(target, "/dev/pts/") {
		t.Errorf("the node leads to %s, %v, of %+v", target, err, p.Nodes)
	}
}

// With the permission m (mknod), a task can make any node that its cgroup allows; with w, it can change the stick.
func TestReserve_UsesPermissionsOfBlock(t *testing.T) {
	for config, want := range map[string]string{
		"": "rw", `cgroup_permissions = "r"`: "r", `cgroup_permissions = "w"`: "w", `cgroup_permissions = "rm"`: "rm",
		`cgroup_permissions = "rwm"`: "rwm",
	} {
		m := newMachine(t, "device \"zigbee\" {\nid = \"10c4:ea60\"\nnames { tty = \"/dev/ttyACM0\" "+
			"}\n"+config+"\n}\ndevice \"other\" {\nid = \"1a86:7523\"\ncgroup_permissions = \"wm\"\n}")
		m.plug("10c4:ea60", "0001", "1-1")
		m.plug("1a86:7523", "7", "1-2")
		m.scan()
		for id, want := range map[string]string{"10c4:ea60:0001": want, "1a86:7523:7": "wm"} {
			devices := m.reserve(id).Devices
			test.False(t, len(devices) < 3, test.Sprintf("%s: got %d devices", id, len(devices)))
			for _, d := range devices {
				test.Eq(t, want, d.CgroupPerms, test.Sprintf("%q: %s has", config, d.TaskPath))
			}
		}
	}
	for _, wrong := range []string{"", "rwx", "mw", "x"} {
		_, err := decode(t, "device \"zigbee\" {\nid = \"10c4:ea60\"\ncgroup_permissions = \""+wrong+"\"\n}")
		test.Error(t, err, test.Sprintf("cgroup_permissions %q was accepted", wrong))
	}
}

func TestReserve_IncludesLateUdevNames(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	const byID = "/dev/serial/by-id/usb-Silicon_Labs_CP2102_0001-if00-port0"
	m.must(os.Rename(m.root+byID, m.root+"/later"))
	m.scan()
	m.must(os.Rename(m.root+"/later", m.root+byID))
	r := m.reserve("10c4:ea60:0001")
	last := r.Devices[len(r.Devices)-1]
	must.Eq(t, byID, last.TaskPath, must.Sprintf("the last device is %+v", last))
	test.Eq(t, r.Envs["USB_ZIGBEE_HOST_TTY"], last.HostPath, test.Sprintf("the last device is %+v", last))
}

func wantReservation(t *testing.T, got, want *nomad.ContainerReservation) {
	t.Helper()
	g, _ := json.MarshalIndent(got, "", " ")
	w, _ := json.MarshalIndent(want, "", " ")
	test.SliceEqOp(t, w, g)
}

func TestReserve_SeveralDevicesDoNotConflict(t *testing.T) {
	m := newMachine(t, `
		device "zigbee" { id = "10c4:ea60" }
		device "zwave" { id = "0658:0200" }`)
	m.plug("10c4:ea60", "0001", "1-1")
	m.plug("10c4:ea60", "0002", "1-2")
	m.plug("0658:0200", "0001", "1-3")
	m.scan()
	one, two := m.reserve("10c4:ea60:0001", "10c4:ea60:0002"), m.reserve("0658:0200:0001")

	paths, variables := map[string]bool{}, map[string]bool{}
	for _, r := range []*nomad.ContainerReservation{one, two} {
		for _, d := range r.Devices {
			if paths[d.TaskPath] {
				t.Errorf("path %s is given twice", d.TaskPath)
			}
			paths[d.TaskPath] = true
		}
		for name := range r.Envs {
			if variables[name] {
				t.Errorf("variable %s is given twice", name)
			}
			variables[name] = true
		}
		if len(r.Mounts) > 0 {
			t.Errorf("%+v is mounted, which only one of them could have", r.Mounts[0])
		}
	}
	for name, want := range map[string]string{
		"USB_ZIGBEE_TTY": "/dev/zigbee/tty", "USB_ZIGBEE_2_TTY": "/dev/zigbee-2/tty",
		"USB_ZIGBEE_ID": "10c4:ea60:0001", "USB_ZIGBEE_2_ID": "10c4:ea60:0002",
		"USB_ZIGBEE_2_HOST_TTY": m.nodes + "/10c4-ea60-0002/tty",
	} {
		test.Eq(t, want, one.Envs[name], test.Sprint(name))
	}
	test.Eq(t, "/dev/zwave/tty", two.Envs["USB_ZWAVE_TTY"], test.Sprintf("got %v", two.Envs))
}

func TestReserve_MountsDirectoriesForLibusb(t *testing.T) {
	m := newMachine(t, `
		device "sdr" {
			id    = "0bda:2838"
			nodes = ["usb"]
		}
		device "both" {
			id     = "10c4:ea60"
			libusb = true
		}
		device "none" {
			id     = "1a86:*"
			nodes  = ["usb"]
			libusb = false
		}`)
	m.plug("0bda:2838", "77", "1-1")
	m.plug("10c4:ea60", "0001", "1-2")
	m.plug("1a86:7523", "x", "1-3")
	m.scan()
	for id, want := range map[string]bool{"0bda:2838:77": true, "10c4:ea60:0001": true, "1a86:7523:x": false} {
		r, dir := m.reserve(id), filepath.Join(m.nodes, strings.ReplaceAll(id, ":", "-"))
		var bus, sys *nomad.Mount
		for _, mount := range r.Mounts {
			switch mount.TaskPath {
			case "/dev/bus/usb":
				bus = mount
			case "/sys/bus/usb/devices":
				sys = mount
			}
		}
		must.Eq(t, want, (bus != nil), must.Sprintf("%s: mounts are %+v, %+v", id, bus, sys))
		test.Eq(t, (want && config.IsDir("/sys/bus/usb/devices")), (sys != nil),
			test.Sprintf("%s: mounts are %+v, %+v", id, bus, sys))
		if want && (bus.HostPath != dir+"/bus" || !bus.ReadOnly || !config.IsDir(dir+"/bus")) {
			t.Errorf("%s: mount is %+v", id, bus)
		}
		nodes, _ := filepath.Glob(dir + "/bus/*/*")
		test.Eq(t, want, (len(nodes) == 1), test.Sprintf("%s: nodes are %v", id, nodes))
		if links, _ := os.ReadDir(dir + "/sys"); want && (len(links) != 1 || !strings.HasPrefix(mustReadlink(t,
			dir+"/sys/"+links[0].Name()), "../../../devices/")) {
			t.Errorf("%s: links are %v", id, links)
		}
	}
}

// Nomad replaces a task's volumes by the mounts of its devices, so by default other drivers get no mounts.
func TestMountsForAll_CanBeLimitedToOurDrivers(t *testing.T) {
	for text, want := range map[string]bool{"": false, "mounts_for_all = true": false, "mounts_for_all = false": true} {
		test.Eq(t, want, newMachine(t, text).Options().MountsInEnvironment, test.Sprintf("%q", text))
	}
}

func mustReadlink(t *testing.T, path string) string {
	target, err := os.Readlink(path)
	test.NoError(t, err)
	return target
}

func TestReserve_RefusesAMissingDevice(t *testing.T) {
	m := newMachine(t, `device "key" {
		id    = "1050:0407"
		nodes = ["hidraw"]
	}`)
	m.plug("1050:0407", "7", "1-1", "tty")
	pulled, moved := m.plug("1050:0407", "8", "1-2", "hidraw"), m.plug("1050:0407", "9", "1-3", "hidraw")
	m.scan()
	m.must(pulled.Unplug())
	m.must(moved.Unplug())
	m.plug("1050:0407", "9", "1-3", "hidraw")
	const vanished = "the device has vanished since the last scan"
	for id, want := range map[string]string{
		"1050:0407:7": "no hidraw", "10c4:ea60:0001": vanished, "1050:0407:8": vanished, "1050:0407:9": vanished,
	} {
		_, err := m.Reserve(t.Context(), []string{id})
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, device.ErrVanished) != (want == vanished) {
			t.Errorf("%s: got %v, want %s", id, err, want)
		}
	}
	m.scan()
	m.reserve("1050:0407:9")
}

func TestReserve_FallsBackToKernelNodes(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	for _, dir := range []string{m.root, filepath.Dir(m.root), filepath.Dir(filepath.Dir(m.root))} {
		m.must(os.Chmod(dir, 0o755))
	}
	m.nodes = "/nomad-usb-test" // a directory that only root can make
	m.start(zigbeeBlock)
	done := make(chan string)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread with the changed user ends with the goroutine
		if os.Geteuid() == 0 {
			unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534)
		}
		var problem string
		for range 3 {
			groups, err := m.List(t.Context())
			if err != nil || len(groups) != 1 {
				problem = fmt.Sprint(groups, err)
			} else {
				problem = groups[0].Devices[0].Problem
			}
		}
		done <- problem
	}()
	must.Eq(t, "", <-done, must.Sprint("the device is not usable"))
	r := m.reserve("10c4:ea60:0001")
	if tty := m.root + "/dev/ttyUSB0"; r.Envs["USB_ZIGBEE_HOST_TTY"] != tty || r.Devices[1].HostPath != tty ||
		r.Devices[1].TaskPath != "/dev/zigbee/tty" {
		t.Errorf("got %v, %+v", r.Envs, r.Devices[1])
	}
	n := strings.Count(m.log.String(), "no device nodes can be made for tasks")
	test.Eq(t, 1, n, test.Sprintf("logged %d times: %s", n, m.log))
}
