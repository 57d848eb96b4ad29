package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	nomad "github.com/hashicorp/nomad/plugins/device"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/device"

	"github.com/outrider-dev/outrider/plugins/usb/simulate"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// machine is a simulated one with an inventory of it.
type machine struct {
	*testing.T
	*inventory
	root, nodes string
	log         *output
}

// newMachine has no stick yet; shadow_dir and root are set.
func newMachine(t *testing.T, config string) *machine {
	t.Helper()
	m := &machine{T: t, root: filepath.Join(t.TempDir(), "sim"), log: &output{}}
	m.nodes = filepath.Join(filepath.Dir(m.root), "nodes")
	m.must(os.MkdirAll(filepath.Join(m.root, "sys"), 0o755))
	m.start(config)
	return m
}

// start makes a new inventory, as a plugin that was started again does.
func (m *machine) start(config string) {
	m.Helper()
	c, err := decode(m.T, fmt.Sprintf("root = %q\nshadow_dir = %q\n%s", m.root, m.nodes, config))
	m.must(err)
	supply, err := configure(c, hclog.New(&hclog.LoggerOptions{Output: m.log, Level: hclog.Trace}))
	m.must(err)
	m.inventory = supply.Inventory.(*inventory)
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// plug plugs a stick with a serial number, or without where that is empty.
func (m *machine) plug(id, serial, port string, functions ...string) *simulate.Plugged {
	m.Helper()
	parsed, err := sysfs.ParseID(id)
	m.must(err)
	p, err := simulate.Plug(m.root, simulate.Stick{ID: parsed, Serial: serial, Port: port, Manufacturer: "Silicon Labs", Product: "CP2102", Functions: functions})
	m.must(err)
	m.Cleanup(func() { m.must(p.Unplug()) })
	return p
}

func (m *machine) scan() []device.Group {
	m.Helper()
	groups, err := m.Scan(m.Context())
	m.must(err)
	slices.SortFunc(groups, func(a, b device.Group) int {
		return strings.Compare(a.Vendor+"/"+a.Type+"/"+a.Name, b.Vendor+"/"+b.Type+"/"+b.Name)
	})
	return groups
}

// published lists groups with their devices: "10c4/zigbee/ea60 10c4:ea60:0001".
func (m *machine) published() (all []string) {
	m.Helper()
	for _, g := range m.scan() {
		line := g.Vendor + "/" + g.Type + "/" + g.Name
		for _, d := range g.Devices {
			line += " " + d.ID
			if d.Problem != "" {
				line += " (" + d.Problem + ")"
			}
		}
		all = append(all, line)
	}
	return all
}

func (m *machine) wantPublished(want ...string) {
	m.Helper()
	if got := m.published(); !slices.Equal(got, want) {
		m.Errorf("published are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (m *machine) reserve(ids ...string) *nomad.ContainerReservation {
	m.Helper()
	r, err := m.Reserve(m.Context(), ids)
	m.must(err)
	return r
}

// wantNodes says what the directory of shadow nodes has: "10c4-ea60-0001/tty".
func (m *machine) wantNodes(want ...string) {
	m.Helper()
	got, err := filepath.Glob(m.nodes + "/*/*")
	m.must(err)
	for i := range got {
		got[i], _ = filepath.Rel(m.nodes, got[i])
	}
	if !slices.Equal(got, want) {
		m.Errorf("nodes are %q, want %q", got, want)
	}
}

// output takes what several goroutines write.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

const zigbeeBlock = `device "zigbee" { id = "10c4:ea60" }`

func TestAStickIsPublishedUnderItsName(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.wantPublished()
	m.plug("10c4:ea60", "0001", "1-1")
	m.plug("1a86:7523", "", "1-2") // no block's
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60:0001")
	m.wantNodes("10c4-ea60-0001/tty", "10c4-ea60-0001/usb")

	g := m.scan()[0]
	if g.Devices[0].PCIBusID != "0000:00:14.0" {
		t.Errorf("PCI address is %q", g.Devices[0].PCIBusID)
	}
	got := map[string]any{}
	for name, a := range g.Attributes {
		if s, ok := a.GetString(); ok {
			got[name] = s
		} else if i, ok := a.GetInt(); ok {
			got[name] = i
		} else {
			t.Errorf("attribute %s is neither text nor a whole number: %v", name, a)
		}
	}
	want := map[string]any{
		"usb_id": "10c4:ea60", "vendor_id": int64(0x10c4), "product_id": int64(0xea60),
		"class_id": int64(0), "sub_class_id": int64(0), "protocol_id": int64(0), "classification": "vendor-specific",
		"vendor": "Silicon Labs", "product": "CP2102", "description": "CP2102 (Silicon Labs)", "speed": int64(12), "driver": "cp210x",
		"serial": "0001", "serials": "0001", "port": "pci-0000:00:14.0-usbv2-0:1", "ports": "pci-0000:00:14.0-usbv2-0:1",
	}
	if !maps.Equal(got, want) {
		t.Errorf("attributes are\n%v\nwant\n%v", got, want)
	}
}

func TestATaskGetsItsStickUnderTheNamesOfItsBlock(t *testing.T) {
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
			"USB_MY_ZIGBEE_ID": "10c4:ea60:0001", "USB_MY_ZIGBEE_VENDOR_ID": "10c4", "USB_MY_ZIGBEE_PRODUCT_ID": "ea60", "USB_MY_ZIGBEE_SERIAL": "0001",
			"USB_MY_ZIGBEE_PORT": "1-1", "USB_MY_ZIGBEE_BUS": "1", "USB_MY_ZIGBEE_BUS_PORT": "1", "USB_MY_ZIGBEE_ADDRESS": "4",
			"USB_MY_ZIGBEE_TTY": "/dev/my-zigbee/tty", "USB_MY_ZIGBEE_HOST_TTY": host + "tty",
			"USB_MY_ZIGBEE_USB": "/dev/my-zigbee/usb", "USB_MY_ZIGBEE_HOST_USB": host + "usb",
		},
	}
	wantReservation(t, r, want)
	if info, err := os.Stat(r.Devices[1].HostPath); err != nil || info.Mode().Perm() != 0o660 || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("the node is %v, %v", info.Mode(), err)
	}
	if target, err := filepath.EvalSymlinks(host + "tty"); err != nil || !strings.HasPrefix(target, "/dev/pts/") {
		t.Errorf("the node leads to %s, %v, of %+v", target, err, p.Nodes)
	}
}

func wantReservation(t *testing.T, got, want *nomad.ContainerReservation) {
	t.Helper()
	g, _ := json.MarshalIndent(got, "", " ")
	w, _ := json.MarshalIndent(want, "", " ")
	if !bytes.Equal(g, w) {
		t.Errorf("got  %s\nwant %s", g, w)
	}
}

func TestTwoEqualSticksAreToldApartByWhereTheyArePluggedIn(t *testing.T) {
	m := newMachine(t, `
		device "left" {
			id   = "1a86:7523"
			port = "1-1"
		}
		device "right" {
			id   = "1a86:7523"
			port = "*-0:2"
		}`)
	want := []string{"1a86/left/7523 1a86:7523@pci-0000:00:14.0-usbv2-0:1", "1a86/right/7523 1a86:7523@pci-0000:00:14.0-usbv2-0:2"}
	left, right := m.plug("1a86:7523", "", "1-1"), m.plug("1a86:7523", "", "1-2")
	m.wantPublished(want...)
	m.must(left.Unplug())
	m.must(right.Unplug())
	m.wantPublished()
	m.start(`device "left" {
			id   = "1a86:7523"
			port = "1-1"
		}
		device "right" {
			id   = "1a86:7523"
			port = "*-0:2"
		}`) // as after a restart of the host
	m.plug("1a86:7523", "", "1-2")
	m.plug("1a86:7523", "", "1-1")
	m.wantPublished(want...)
}

func TestSeveralSticksOfOneTaskDoNotMeet(t *testing.T) {
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
		if one.Envs[name] != want {
			t.Errorf("%s is %q, want %q", name, one.Envs[name], want)
		}
	}
	if two.Envs["USB_ZWAVE_TTY"] != "/dev/zwave/tty" {
		t.Errorf("got %v", two.Envs)
	}
}

func TestEverythingElseIsPublishedWhenAsked(t *testing.T) {
	m := newMachine(t, `
		match_all = true
		device "zigbee" { id = "10c4:ea60" }
		exclude "keys" { id = "1050:*" }`)
	m.plug("10c4:ea60", "0001", "1-1")
	m.plug("1a86:7523", "", "1-2")
	m.plug("1050:0407", "7", "1-3", "hidraw")
	m.plug("0403:6001", "A1", "2-1")
	m.wantPublished("0403/usb/6001 0403:6001:A1", "10c4/zigbee/ea60 10c4:ea60:0001", "1a86/usb/7523 1a86:7523@pci-0000:00:14.0-usbv2-0:2")
	r := m.reserve("0403:6001:A1")
	host := m.nodes + "/0403-6001-A1/tty"
	if r.Envs["USB_VISIBLE_DEVICES"] != "0403:6001:A1" || r.Envs["USB_USB_TTY"] != host || r.Devices[1].TaskPath != host || r.Devices[1].HostPath != host {
		t.Errorf("got %v, %+v", r.Envs, r.Devices[1])
	}
	if _, set := m.reserve("10c4:ea60:0001").Envs["USB_VISIBLE_DEVICES"]; set {
		t.Error("a device with a name of its own is in USB_VISIBLE_DEVICES")
	}
}

func TestADeviceMayBeSharedByACount(t *testing.T) {
	m := newMachine(t, `device "gps" {
		id    = "1546:01a8"
		count = 3
	}`)
	m.plug("1546:01a8", "", "1-1")
	id := "1546:01a8@pci-0000:00:14.0-usbv2-0:1"
	m.wantPublished("1546/gps/01a8 " + id + "#1 " + id + "#2 " + id + "#3")
	one, two := m.reserve(id+"#1"), m.reserve(id+"#3")
	if one.Envs["USB_GPS_HOST_TTY"] != two.Envs["USB_GPS_HOST_TTY"] || one.Envs["USB_GPS_ID"] != id+"#1" || two.Envs["USB_GPS_TTY"] != "/dev/gps/tty" {
		t.Errorf("got %v and %v", one.Envs, two.Envs)
	}
	if strings.Count(strings.Join(m.entries(), " "), "1546") != 1 {
		t.Errorf("there are several directories: %v", m.entries())
	}
}

func (m *machine) entries() (names []string) {
	entries, _ := os.ReadDir(m.nodes)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestWhatIsNeededAndMissingIsSaid(t *testing.T) {
	m := newMachine(t, `device "key" {
		id    = "1050:0407"
		nodes = ["hidraw", "usb?", "tty?"]
	}`)
	p := m.plug("1050:0407", "7", "1-1", "hidraw")
	m.wantPublished("1050/key/0407 1050:0407:7")
	m.wantNodes("1050-0407-7/hidraw", "1050-0407-7/usb")
	m.must(p.Unplug())
	m.plug("1050:0407", "7", "1-1", "tty")
	m.wantPublished("1050/key/0407 1050:0407:7 (no hidraw: its driver cp210x has made none)")
}

func TestAReplugKeepsPathsAndIsCounted(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	r := m.reserve("10c4:ea60:0001")
	first, err := filepath.EvalSymlinks(r.Envs["USB_ZIGBEE_HOST_TTY"])
	m.must(err)
	held, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0) // so that the next pty is another
	m.must(err)
	defer held.Close()

	m.must(p.Unplug())
	m.wantPublished()
	m.wantNodes("10c4-ea60-0001/tty", "10c4-ea60-0001/usb") // in the grace period
	m.plug("10c4:ea60", "0001", "1-2")
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60:0001")
	again := m.reserve("10c4:ea60:0001")
	if again.Envs["USB_ZIGBEE_HOST_TTY"] != r.Envs["USB_ZIGBEE_HOST_TTY"] {
		t.Errorf("the path is now %s", again.Envs["USB_ZIGBEE_HOST_TTY"])
	}
	if second, err := filepath.EvalSymlinks(r.Envs["USB_ZIGBEE_HOST_TTY"]); err != nil {
		t.Error(err)
	} else if info, err := os.Stat(second); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the new node is %v, %v (%s, before %s)", info.Mode(), err, second, first)
	}
	stats, err := m.Stats(t.Context(), []string{"10c4:ea60:0001", "1:2"})
	m.must(err)
	if n := *stats["10c4:ea60:0001"].Stats.Attributes["Re-plugs"].IntNumeratorVal; n != 1 {
		t.Errorf("counted %d re-plugs", n)
	}
	if there := stats["1:2"].Stats.Attributes["Plugged in"].BoolVal; there == nil || *there {
		t.Error("what is not there is")
	}
}

func TestNodesGoWithTheirDeviceWhenTheGracePeriodIsOver(t *testing.T) {
	m := newMachine(t, `
		grace = "50ms"
		match_all = true`)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.plug("10c4:ea60", "0003", "1-3")
	m.scan()
	r := m.reserve("10c4:ea60:0001")
	m.must(p.Unplug())
	m.scan()
	time.Sleep(60 * time.Millisecond)
	m.scan()
	m.wantNodes("10c4-ea60-0003/tty", "10c4-ea60-0003/usb")
	if !isDir(m.nodes + "/10c4-ea60-0001") {
		t.Error("the directory is gone, which a task may have mounted")
	}
	p = m.plug("10c4:ea60", "0001", "1-4")
	m.scan()
	if _, err := os.Stat(r.Envs["USB_USB_HOST_TTY"]); err != nil {
		t.Error(err)
	}
	m.must(p.Unplug())
	m.start(`match_all = true`)
	m.scan()
	m.wantNodes("10c4-ea60-0003/tty", "10c4-ea60-0003/usb")
	if isDir(m.nodes + "/10c4-ea60-0001") {
		t.Error("what a former run left is not removed")
	}
}

func TestAStickThatTookAnothersPlaceIsNotFoundUnderItsName(t *testing.T) {
	m := newMachine(t, `match_all = true`)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	m.must(p.Unplug())
	if other := m.plug("10c4:ea60", "0002", "1-1"); other.Nodes[0] != p.Nodes[0] {
		t.Fatalf("it is %s and not %s", other.Nodes[0], p.Nodes[0])
	}
	m.scan()
	m.wantNodes("10c4-ea60-0001/usb", "10c4-ea60-0002/tty", "10c4-ea60-0002/usb")
}

func TestAStickWhoseTwinIsPluggedInKeepsItsNodesForTheTaskThatHasIt(t *testing.T) {
	m := newMachine(t, "grace = \"0s\"\n"+zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60:0001")
	r := m.reserve("10c4:ea60:0001")
	twin := m.plug("10c4:ea60", "0001", "1-2")
	both := "10c4/zigbee/ea60 10c4:ea60@pci-0000:00:14.0-usbv2-0:1 10c4:ea60@pci-0000:00:14.0-usbv2-0:2"
	m.wantPublished(both)
	m.wantPublished(both)
	if _, err := os.Stat(r.Envs["USB_ZIGBEE_HOST_TTY"]); err != nil {
		t.Error(err)
	}
	m.must(twin.Unplug())
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60@pci-0000:00:14.0-usbv2-0:1")
}

func TestWhatLibusbLooksAtIsMountedForADeviceWithoutOtherNodes(t *testing.T) {
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
		if (bus != nil) != want || (sys != nil) != (want && isDir("/sys/bus/usb/devices")) {
			t.Errorf("%s: mounts are %+v, %+v", id, bus, sys)
		}
		if want && (bus.HostPath != dir+"/bus" || !bus.ReadOnly || !isDir(dir+"/bus")) {
			t.Errorf("%s: mount is %+v", id, bus)
		}
		if nodes, _ := filepath.Glob(dir + "/bus/*/*"); want != (len(nodes) == 1) {
			t.Errorf("%s: nodes are %v", id, nodes)
		}
		if links, _ := os.ReadDir(dir + "/sys"); want && (len(links) != 1 || !strings.HasPrefix(mustReadlink(t, dir+"/sys/"+links[0].Name()), "../../../devices/")) {
			t.Errorf("%s: links are %v", id, links)
		}
	}
}

func mustReadlink(t *testing.T, path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		t.Error(err)
	}
	return target
}

func TestADirectoryThatCanNotBeUsedMakesDevicesUnhealthy(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.must(os.Mkdir(m.nodes, 0o755))
	m.must(os.WriteFile(m.nodes+"/precious", nil, 0o600))
	m.plug("10c4:ea60", "0001", "1-1")
	m.wantPublished("10c4/zigbee/ea60 10c4:ea60:0001 (its device nodes can't be made: " + m.nodes + " has files of others: use a directory that is empty or missing)")
}

func TestNothingConfiguredAndBlocksThatOverlapAreSaidOnce(t *testing.T) {
	m := newMachine(t, ``)
	m.plug("10c4:ea60", "0001", "1-1")
	for range 3 {
		m.wantPublished()
	}
	if n := strings.Count(m.log.String(), "no device is published: add device blocks"); n != 1 {
		t.Errorf("said %d times: %s", n, m.log)
	}
	m.start(`
		device "b" { id = "10c4:*" }
		device "a" { id = "*:ea60" }`)
	for range 3 {
		m.wantPublished("10c4/a/ea60 10c4:ea60:0001")
	}
	if n := strings.Count(m.log.String(), `device 10c4:ea60:0001 belongs to block "a", though "b" matches it too`); n != 1 {
		t.Errorf("said %d times: %s", n, m.log)
	}
}

func TestADeviceThatIsGoneIsNotReserved(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	if _, err := m.Reserve(t.Context(), []string{"10c4:ea60:0001"}); err == nil || !strings.Contains(err.Error(), "unplugged") {
		t.Errorf("got %v", err)
	}
}

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

func TestWithoutTheRightToMakeNodesTheKernelsOwnAreGiven(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	for _, dir := range []string{m.root, filepath.Dir(m.root), filepath.Dir(filepath.Dir(m.root))} {
		m.must(os.Chmod(dir, 0o755))
	}
	m.nodes = "/nomad-usb-test" // where only root may make it
	m.start(zigbeeBlock)
	done := make(chan string)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if os.Geteuid() == 0 {
			unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534)
		}
		var problem string
		for range 3 {
			groups, err := m.Scan(t.Context())
			if err != nil || len(groups) != 1 {
				problem = fmt.Sprint(groups, err)
			} else {
				problem = groups[0].Devices[0].Problem
			}
		}
		done <- problem
	}()
	if problem := <-done; problem != "" {
		t.Fatalf("the device is not usable: %s", problem)
	}
	r := m.reserve("10c4:ea60:0001")
	if tty := m.root + "/dev/ttyUSB0"; r.Envs["USB_ZIGBEE_HOST_TTY"] != tty || r.Devices[1].HostPath != tty || r.Devices[1].TaskPath != "/dev/zigbee/tty" {
		t.Errorf("got %v, %+v", r.Envs, r.Devices[1])
	}
	if n := strings.Count(m.log.String(), "no device nodes can be made for tasks"); n != 1 {
		t.Errorf("said %d times: %s", n, m.log)
	}
}
