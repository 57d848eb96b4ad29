package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

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

func TestADeviceThatChangesItsIDWhenUsedIsOne(t *testing.T) {
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
		if got := *stats[id].Stats.Attributes["Re-plugs"].IntNumeratorVal; got != want {
			t.Errorf("counted %d re-plugs, want %d", got, want)
		}
	}
	p := m.plug("1a6e:089a", "", "1-1")
	m.wantPublished(published)
	r := m.reserve(id)
	bus := m.nodes + "/" + dir + "/bus/001/00"
	if r.Envs["USB_TPU_ID"] != id || r.Envs["USB_TPU_PRODUCT_ID"] != "089a" || !exists(bus+"4") {
		t.Errorf("got %v", r.Envs)
	}
	m.must(p.Unplug()) // as its firmware starts
	m.wantPublished()
	p = m.plug("18d1:9302", "7", "1-1")
	m.wantPublished(published)
	if exists(bus+"4") || !exists(bus+"5") || !exists(r.Envs["USB_TPU_HOST_USB"]) {
		t.Errorf("nodes are %q", m.treeOfNodes())
	}
	wantReplugs(0)
	if usb, _ := m.scan()[0].Attributes["usb_id"].GetString(); usb != "1a6e:089a" {
		t.Errorf("usb_id is %s", usb)
	}
	if again := m.reserve(id); again.Envs["USB_TPU_HOST_USB"] != r.Envs["USB_TPU_HOST_USB"] || again.Envs["USB_TPU_PRODUCT_ID"] != "089a" {
		t.Errorf("got %v, before %v", again.Envs, r.Envs)
	}
	m.must(p.Unplug())
	m.plug("1a6e:089a", "", "1-1")
	m.wantPublished(published)
	wantReplugs(1)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
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
	time.Sleep(60 * time.Millisecond) // at least
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

func TestAStickWithTheAddressOfTheOneBeforeIsNotTakenForIt(t *testing.T) {
	m := newMachine(t, "grace = \"0s\"\nmatch_all = true")
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	m.must(p.Unplug())
	m.must(os.Remove(m.root + "/.simulate/bus1")) // the controller is reset
	if other := m.plug("10c4:ea60", "0002", "1-1"); other.Address != p.Address {
		t.Fatalf("its address is %d and not %d", other.Address, p.Address)
	}
	m.scan()
	m.wantNodes("10c4-ea60-0002/tty", "10c4-ea60-0002/usb")
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
