// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/usbsim"
	"github.com/outrider-dev/outrider/plugins/usb/config"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
	"github.com/outrider-dev/outrider/plugins/usb/uevent"
)

func TestReplug_KeepsPathsAndCounts(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	r := m.reserve("10c4:ea60:0001")
	first, err := filepath.EvalSymlinks(r.Envs["USB_ZIGBEE_HOST_TTY"])
	m.must(err)
	held, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0) // so the next pty has another number
	m.must(err)
	defer held.Close()

	m.must(p.Unplug())
	m.wantPublished()
	m.wantNodes() // none: the kernel may give their numbers to other devices
	m.plug("10c4:ea60", "0001", "1-2")
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60:0001")
	again := m.reserve("10c4:ea60:0001")
	test.Eq(t, r.Envs["USB_ZIGBEE_HOST_TTY"], again.Envs["USB_ZIGBEE_HOST_TTY"], test.Sprint("the path has changed"))
	if second, err := filepath.EvalSymlinks(r.Envs["USB_ZIGBEE_HOST_TTY"]); err != nil {
		t.Error(err)
	} else if info, err := os.Stat(second); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the new node is %v, %v (%s, before %s)", info.Mode(), err, second, first)
	}
	stats, err := m.Stats(t.Context(), []string{"10c4:ea60:0001", "1:2"})
	m.must(err)
	n := *stats["10c4:ea60:0001"].Stats.Attributes["Re-plugs"].IntNumeratorVal
	test.Eq(t, 1, n, test.Sprintf("counted %d re-plugs", n))
	if there := stats["1:2"].Stats.Attributes["Plugged in"].BoolVal; there == nil || *there {
		t.Error("an unknown device is plugged in")
	}
}

func TestReplug_DeviceThatChangesItsIDStaysTheSame(t *testing.T) {
	m := newMachine(t, `device "tpu" {
		id       = ["1a6e:089a", "18d1:9302"]
		known_as = "1A6E:089A"
		nodes    = ["usb"]
	}`)
	const id, dir = "1a6e:089a@pci-0000:00:14.0-usb-0:1", "1a6e-089a@pci-0000-00-14.0-usb-0-1"
	published := "1a6e/tpu/089a " + id
	wantReplugs := func(want int64) {
		t.Helper()
		stats, err := m.Stats(t.Context(), []string{id})
		m.must(err)
		got := *stats[id].Stats.Attributes["Re-plugs"].IntNumeratorVal
		test.Eq(t, want, got, test.Sprintf("counted %d re-plugs", got))
	}
	p := m.plug("1a6e:089a", "", "1-1")
	m.wantPublished(published)
	r := m.reserve(id)
	bus := m.nodes + "/" + dir + "/bus/001/00"
	must.Eq(t, id, r.Envs["USB_TPU_ID"], must.Sprintf("got %v", r.Envs))
	must.Eq(t, "089a", r.Envs["USB_TPU_PRODUCT_ID"], must.Sprintf("got %v", r.Envs))
	test.True(t, testsupport.Exists(bus+"4"), test.Sprintf("got %v", r.Envs))
	m.must(p.Unplug()) // the device starts its firmware, and returns with another id
	m.wantPublished()
	p = m.plug("18d1:9302", "7", "1-1")
	m.wantPublished(published)
	if testsupport.Exists(bus+"4") || !testsupport.Exists(bus+"5") || !testsupport.Exists(r.Envs["USB_TPU_HOST_USB"]) {
		t.Errorf("nodes are %q", m.treeOfNodes())
	}
	wantReplugs(0)
	usb, _ := m.scan()[0].Attributes["usb_id"].GetString()
	test.Eq(t, "1a6e:089a", usb, test.Sprint("usb_id"))
	again := m.reserve(id)
	must.Eq(t, r.Envs["USB_TPU_HOST_USB"], again.Envs["USB_TPU_HOST_USB"],
		must.Sprintf("got %v, before %v", again.Envs, r.Envs))
	test.Eq(t, "089a", again.Envs["USB_TPU_PRODUCT_ID"], test.Sprintf("got %v, before %v", again.Envs, r.Envs))
	m.must(p.Unplug())
	m.plug("1a6e:089a", "", "1-1")
	m.wantPublished(published)
	wantReplugs(1)
}

func TestReplug_NodesDisappearWithDevice(t *testing.T) {
	m := newMachine(t, `match_all = true`)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.plug("10c4:ea60", "0003", "1-3")
	m.scan()
	r := m.reserve("10c4:ea60:0001")
	m.must(p.Unplug())
	m.scan()
	m.wantNodes("10c4-ea60-0003/tty", "10c4-ea60-0003/usb")
	test.True(t, config.IsDir(m.nodes+"/10c4-ea60-0001"),
		test.Sprint("the directory was removed, which a task may have mounted"))
	p = m.plug("10c4:ea60", "0001", "1-4")
	m.scan()
	_, err := os.Stat(r.Envs["USB_USB_HOST_TTY"])
	test.NoError(t, err)
	m.must(p.Unplug())
	m.start(`match_all = true`)
	m.scan()
	m.wantNodes("10c4-ea60-0003/tty", "10c4-ea60-0003/usb")
}

func TestReplug_RestartKeepsMountedDirectories(t *testing.T) {
	const block = "device \"sdr\" {\nid = \"0bda:2838\"\nnodes = [\"usb\"]\n}"
	m := newMachine(t, block)
	p := m.plug("0bda:2838", "77", "1-1")
	m.scan()
	bus := m.reserve("0bda:2838:77").Mounts[0].HostPath
	mounted, err := os.Open(bus)
	m.must(err)
	defer mounted.Close()
	m.must(p.Unplug())
	m.start(block) // restarts the plugin while the device is unplugged
	m.scan()
	m.plug("0bda:2838", "77", "1-1")
	m.scan()
	in, err := mounted.Stat()
	m.must(err)
	now, err := os.Stat(bus)
	m.must(err)
	test.True(t, os.SameFile(in, now), test.Sprint("the task has a removed directory"))
	_, err = os.Stat(fmt.Sprintf("/proc/self/fd/%d/001/005", mounted.Fd()))
	test.NoError(t, err, test.Sprint("the task does not have the device"))
}

func TestReplug_NewDeviceAtAPortGetsItsOwnName(t *testing.T) {
	m := newMachine(t, `match_all = true`)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	m.must(p.Unplug())
	if other := m.plug("10c4:ea60", "0002", "1-1"); other.Nodes[0] != p.Nodes[0] {
		t.Fatalf("it is %s and not %s", other.Nodes[0], p.Nodes[0])
	}
	m.scan()
	m.wantNodes("10c4-ea60-0002/tty", "10c4-ea60-0002/usb")
}

func TestReplug_NewDeviceWithTheSameAddressGetsItsOwnName(t *testing.T) {
	m := newMachine(t, "grace = \"0s\"\nmatch_all = true")
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	m.must(p.Unplug())
	m.must(os.Remove(m.root + "/.simulate/bus1")) // as after a reset of the controller, which reuses the addresses
	other := m.plug("10c4:ea60", "0002", "1-1")
	must.Eq(t, p.Address, other.Address, must.Sprintf("its address is %d and not", other.Address))
	m.scan()
	m.wantNodes("10c4-ea60-0002/tty", "10c4-ea60-0002/usb")
}

func TestReplug_TaskKeepsItsNodesIfAnIdenticalStickIsPlugged(t *testing.T) {
	m := newMachine(t, "grace = \"0s\"\n"+zigbeeBlock)
	first := m.plug("10c4:ea60", "0001", "1-1")
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60:0001")
	r := m.reserve("10c4:ea60:0001")
	twin := m.plug("10c4:ea60", "0001", "1-2")
	both := "10c4/zigbee/ea60 10c4:ea60@pci-0000:00:14.0-usbv2-0:1 10c4:ea60@pci-0000:00:14.0-usbv2-0:2"
	was := "10c4/zigbee/ea60 10c4:ea60:0001 (its id is now 10c4:ea60@pci-0000:00:14.0-usbv2-0:1, because another " +
		"device has the same serial number)"
	m.wantPublished(both, was)
	m.wantPublished(both, was)
	stats, err := m.Stats(t.Context(), []string{"10c4:ea60:0001"}) // a running allocation still has the old id
	m.must(err)
	if there := stats["10c4:ea60:0001"].Stats.Attributes["Plugged in"].BoolVal; !*there {
		t.Error("it is reported as unplugged under its old id")
	}
	_, err = os.Stat(r.Envs["USB_ZIGBEE_HOST_TTY"])
	test.NoError(t, err)
	m.must(twin.Unplug())
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60@pci-0000:00:14.0-usbv2-0:1", was)
	m.must(first.Unplug())
	m.wantPublished()
	m.plug("10c4:ea60", "0001", "1-1")
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60@pci-0000:00:14.0-usbv2-0:1")
}

// real makes the inventory treat the simulation as the real machine: it makes device nodes with the numbers of the
// simulated devices. Do not open these nodes, because the numbers may belong to real devices.
func (m *machine) real(config string) {
	m.Helper()
	testsupport.NeedRoot(m) // to make device nodes
	c, err := decode(m.T, fmt.Sprintf("shadow_dir = %q\n%s", m.nodes, config))
	m.must(err)
	i, err := New(c, hclog.New(&hclog.LoggerOptions{Output: m.log}))
	m.must(err)
	m.inventory = i.(*inventory)
	m.inventory.open = func() (fs.FS, func(), error) { return os.DirFS(m.root), func() {}, nil }
}

// numbers returns the numbers of a stick's nodes.
func (m *machine) numbers(p *usbsim.Plugged) (all []uevent.Number) {
	m.Helper()
	devices, err := sysfs.Scan(os.DirFS(m.root))
	m.must(err)
	for _, d := range devices {
		for _, n := range d.Nodes {
			if d.Name == p.Port {
				all = append(all, uevent.Number{Block: n.Block, Major: n.Major, Minor: n.Minor})
			}
		}
	}
	return all
}

// pull unplugs a stick. It returns the numbers of the stick's nodes, which the kernel would report as removed.
func (m *machine) pull(p *usbsim.Plugged) (gone []uevent.Number) {
	m.Helper()
	gone = m.numbers(p)
	m.must(p.Unplug())
	return gone
}

// reportAdded calls added for each node of the sticks, as the kernel's events would.
func (m *machine) reportAdded(sticks ...*usbsim.Plugged) {
	m.Helper()
	for _, p := range sticks {
		for _, n := range m.numbers(p) {
			m.added(n)
		}
	}
}

// wantOwnNumbers fails the test if a shadow node has a number that does not belong to the stick of its directory. A
// directory belongs to the stick with the serial number in its name.
func (m *machine) wantOwnNumbers(when string) {
	m.Helper()
	devices, err := sysfs.Scan(os.DirFS(m.root))
	m.must(err)
	holder := map[string]string{}
	for _, d := range devices {
		for _, n := range d.Nodes {
			holder[fmt.Sprintf("%d:%d", n.Major, n.Minor)] = d.Serial
		}
	}
	paths, err := filepath.Glob(m.nodes + "/*/*")
	m.must(err)
	for _, path := range paths {
		info, err := os.Lstat(path)
		m.must(err)
		if info.Mode()&fs.ModeDevice == 0 {
			m.Fatalf("%s is %v", path, info.Mode())
		}
		rdev := info.Sys().(*syscall.Stat_t).Rdev
		n := fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev))
		if dir := filepath.Base(filepath.Dir(path)); dir != "10c4-ea60-"+holder[n] {
			m.Errorf("%s: %s has the number %s, of %q", when, path, n, holder[n])
		}
	}
}

func TestReplug_SticksThatSwapPortsKeepTheirNames(t *testing.T) {
	m := newMachine(t, "")
	m.real(zigbeeBlock)
	a, b := m.plug("10c4:ea60", "A", "1-1"), m.plug("10c4:ea60", "B", "1-2")
	m.scan()
	m.wantNodes("10c4-ea60-A/tty", "10c4-ea60-A/usb", "10c4-ea60-B/tty", "10c4-ea60-B/usb")
	m.wantOwnNumbers("at first")
	m.reserve("10c4:ea60:A")

	gone := append(m.pull(a), m.pull(b)...)
	m.must(os.Remove(m.root + "/.simulate/bus1")) // the bus assigns the same addresses again after this
	for _, r := range gone {
		m.removed(r) // the kernel reports a removal before it reuses the number
	}
	m.wantNodes() // no nodes, even before the next scan
	second := m.plug("10c4:ea60", "B", "1-1")
	first := m.plug("10c4:ea60", "A", "1-2")
	if second.Nodes[0] != a.Nodes[0] || second.Address != a.Address {
		t.Fatalf("B is %s and not where A was, %s", second.Nodes[0], a.Nodes[0])
	}
	m.wantOwnNumbers("before the next scan")
	r, err := m.Reserve(t.Context(), []string{"10c4:ea60:A"})
	test.ErrorIs(t, err, device.ErrVanished, test.Sprintf("before the next scan A is reserved as %v", r))
	m.reportAdded(first, second)
	m.scan()
	m.wantNodes("10c4-ea60-A/tty", "10c4-ea60-A/usb", "10c4-ea60-B/tty", "10c4-ea60-B/usb")
	m.wantOwnNumbers("after it")
	must.StrContains(t, m.log.String(), "restart its tasks of exec",
		must.Sprintf("about copies of the nodes in tasks it logs %q", m.log))
	test.StrContains(t, m.log.String(), "device=10c4:ea60:A",
		test.Sprintf("about copies of the nodes in tasks it logs %q", m.log))
}

// The sticks are swapped after the scan has found them, and before their nodes are made.
func TestReplug_SwapDuringAScanDoesNotMixUpNodes(t *testing.T) {
	for name, reported := range map[string]bool{"with kernel events": true, "without kernel events": false} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "")
			m.real(zigbeeBlock)
			a, b := m.plug("10c4:ea60", "A", "1-1"), m.plug("10c4:ea60", "B", "1-2")
			m.tree = os.DirFS(m.root)
			m.shadows.Begin()
			devices, err := sysfs.Scan(m.tree)
			m.must(err)
			var sticks []*usbDevice
			for _, assigned := range m.Rules.Assign(devices, &m.ids) {
				sticks = append(sticks, m.newDevice(assigned))
			}
			for _, r := range append(m.pull(a), m.pull(b)...) {
				if reported {
					m.removed(r)
				}
			}
			m.must(os.Remove(m.root + "/.simulate/bus1"))
			again := []*usbsim.Plugged{m.plug("10c4:ea60", "B", "1-1"), m.plug("10c4:ea60", "A", "1-2")}
			left := m.shadow(sticks, devices)
			must.SliceLen(t, 2, sticks,
				must.Sprintf("of %d listed sticks %d are taken as still plugged in", len(sticks), len(left)))
			test.SliceEmpty(t, left,
				test.Sprintf("of %d listed sticks %d are taken as still plugged in", len(sticks), len(left)))
			m.wantNodes()
			m.reportAdded(again...)
			m.wantPublished("10c4/zigbee/ea60 10c4:ea60:B 10c4:ea60:A")
			m.wantOwnNumbers("after the next scan")
		})
	}
}

// Events are missed if the kernel's queue overflows, or if they are sent before the plugin listens.
func TestReplug_RemovesNodesAfterMissedEvents(t *testing.T) {
	m := newMachine(t, "")
	m.missed() // must not fail before the first scan
	m.real(zigbeeBlock)
	a := m.plug("10c4:ea60", "A", "1-1")
	m.plug("10c4:ea60", "B", "1-2")
	m.scan()
	m.pull(a)
	m.missed()
	m.wantNodes("10c4-ea60-B/tty", "10c4-ea60-B/usb")
}

// The kernel reports the removal of a node first. Then it removes the node from sysfs, and the device some time later.
// A scan in between still finds the device.
func TestReplug_WithdrawnNodeIsNotMadeAgain(t *testing.T) {
	m := newMachine(t, "")
	m.real(zigbeeBlock)
	a := m.plug("10c4:ea60", "A", "1-1")
	m.scan()
	for _, n := range m.numbers(a) {
		m.removed(n)
	}
	m.scan()
	m.wantNodes()
	const left = "device 10c4:ea60:A at port 1-1 is not published: the kernel still lists it"
	test.StrNotContains(t, m.log.String(), left, test.Sprint("after one scan it logs"))
	m.scan()
	m.scan()
	n := strings.Count(m.log.String(), left)
	test.Eq(t, 1, n, test.Sprintf("logged %d times that it is left out: %s", n, m.log))
	m.must(a.Unplug())
	m.missed()
	m.plug("10c4:ea60", "A", "1-1")
	m.scan()
	m.wantNodes("10c4-ea60-A/tty", "10c4-ea60-A/usb")
}

// After a reset of its driver, a device has no node although it is plugged in.
func TestReplug_DeviceWithAMissingNodeIsNotReserved(t *testing.T) {
	m := newMachine(t, "")
	m.real(zigbeeBlock)
	a := m.plug("10c4:ea60", "A", "1-1")
	m.scan()
	m.reserve("10c4:ea60:A")
	tty := m.numbers(a)[1]
	m.removed(tty)
	m.wantNodes("10c4-ea60-A/usb")
	r, err := m.Reserve(t.Context(), []string{"10c4:ea60:A"})
	test.ErrorIs(t, err, device.ErrVanished, test.Sprintf("without its tty it is reserved as %v", r))
	m.wantPublished()
	m.added(tty)
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60:A")
	m.reserve("10c4:ea60:A")
	n := m.plugs["10c4:ea60:A"].again
	must.Eq(t, 0, n, must.Sprintf("counted %d re-plugs, logged %s", n, m.log))
	test.Eq(t, "", m.log.String(), test.Sprintf("counted %d re-plugs, logged %s", n, m.log))
}

// recorder is a file system that records the names of the files that are opened.
type recorder struct {
	fs.FS
	opened []string
}

func (r *recorder) Open(name string) (fs.File, error) {
	r.opened = append(r.opened, filepath.Base(name))
	return r.FS.Open(name)
}

// A read of the serial number waits for the device's lock, which the kernel may hold for seconds. Reads of the address,
// the vendor and the product need no lock, so the plugin compares these first.
func TestReplug_ReadsTheSerialOnlyIfTheOtherNumbersMatch(t *testing.T) {
	m := newMachine(t, "")
	m.real(zigbeeBlock)
	a := m.plug("10c4:ea60", "A", "1-1")
	m.scan()
	r := &recorder{FS: os.DirFS(m.root)}
	m.inventory.open = func() (fs.FS, func(), error) { return r, func() {}, nil }
	m.missed()
	m.wantNodes("10c4-ea60-A/tty", "10c4-ea60-A/usb")
	must.SliceContainsOp(t, r.opened, "devnum", must.Sprint("for missed events it reads"))
	test.SliceNotContains(t, r.opened, "serial", test.Sprint("for missed events it reads"))
	m.must(a.Unplug())
	m.plug("10c4:ea60", "A", "1-1")
	r.opened = nil
	_, err := m.Reserve(t.Context(), []string{"10c4:ea60:A"})
	test.ErrorIs(t, err, device.ErrVanished)
	must.SliceContainsOp(t, r.opened, "devnum", must.Sprint("to detect a re-plug it reads"))
	test.SliceNotContains(t, r.opened, "serial", test.Sprint("to detect a re-plug it reads"))
}

// The first stick has nodes under two ids, because a twin has changed its id. missed must remove all of them.
func TestReplug_RemovesAnEarlierIDAfterMissedEvents(t *testing.T) {
	m := newMachine(t, "")
	m.real(zigbeeBlock)
	first := m.plug("10c4:ea60", "A", "1-1")
	m.scan()
	twin := m.plug("10c4:ea60", "A", "1-2")
	m.scan()
	if !testsupport.Exists(m.nodes + "/10c4-ea60-A") {
		t.Fatalf("there are %v: the test tests nothing", m.entries())
	}
	m.pull(first)
	m.pull(twin)
	m.missed()
	m.wantNodes()
}

func TestReplug_FailureToMakeANodeRemovesAllNodes(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	p := m.plug("10c4:ea60", "0001", "1-1", "tty", "tty")
	m.scan()
	m.wantNodes("10c4-ea60-0001/tty-if00", "10c4-ea60-0001/tty-if01", "10c4-ea60-0001/usb")
	m.must(os.Remove(filepath.Join(m.root, p.Nodes[1])))
	m.must(os.Mkdir(filepath.Join(m.root, p.Nodes[1]), 0o755))
	test.StrContains(t, m.scan()[0].Devices[0].Problem, "its device nodes can't be made: ")
	m.wantNodes()
}

func TestReplug_WarnsOnlyForReservedDevices(t *testing.T) {
	m := newMachine(t, `
		device "radio" { id = "10c4:ea60" }
		device "zwave" { id = "0658:0200" }`)
	a, b := m.plug("10c4:ea60", "A", "1-1"), m.plug("10c4:ea60", "B", "1-2")
	z := m.plug("0658:0200", "Z", "1-3")
	m.scan()
	m.reserve("10c4:ea60:A", "10c4:ea60:B")
	for _, p := range []*usbsim.Plugged{a, b, z} {
		m.must(p.Unplug())
		m.plug(p.ID, p.Serial, p.Port)
	}
	m.scan()
	for id, want := range map[string]int{"10c4:ea60:A": 1, "10c4:ea60:B": 1, "0658:0200:Z": 0} {
		if n := strings.Count(m.log.String(), "device="+id+" "); n != want || m.plugs[id].again != 1 {
			t.Errorf("%s: warned %d times, want %d, of %d re-plugs: %s", id, n, want, m.plugs[id].again, m.log)
		}
	}
}
